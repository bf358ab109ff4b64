"""Other people's tables and logs -> run directories that are marked as imported.

Enters: a file or folder as a user has it. Leaves: run directories, and by name whatever was left out, with the reason.

    read.py          the importers, one row each; any file -> what it is -> the runs in it; the one entrance
    table.py         a CSV with one row a run
    curves.py        a CSV with one row an epoch, for one run or many
    keras.py         the file of a Keras CSVLogger
    epoch_tables.py  the tables of Ultralytics and of timm's training script
    lightning.py     the metrics.csv of Lightning's CSVLogger
    huggingface.py   the trainer_state.json of a Hugging Face Trainer
    wandb.py         a run of Weights & Biases: its exported history, or its offline folder
    trackio.py       the database of a trackio project
    history.py       logged rows of any of these -> one point an epoch; what settings tell about a run
    tensorboard.py   a folder of TensorBoard event files
    mllog.py         the :::MLLOG lines of an MLPerf log
    values.py        a run as a source tells it; what was left out; what the user adds by flags
    sheet.py         a file's bytes; those of a CSV as rows of cells, with their line numbers
    cells.py         the text of a cell as a number, a count or a truth; accuracies in fractions or percent
    write.py         runs to directories, all or none
"""
