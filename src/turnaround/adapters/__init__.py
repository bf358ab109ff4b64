"""One line in an existing script: callbacks that tell a turnaround.Recorder what a framework's trainer knows.

Enters: the hooks of a framework. Leaves: calls of `turnaround.Recorder`. Each module imports its framework, so import
only the one that is used; none of them imports another.

    keras.py         TurnaroundCallback for model.fit: Keras 3 on any backend, tf.keras 2, alone or under Horovod
    lightning.py     TurnaroundCallback for Trainer(callbacks=[...]): lightning and pytorch_lightning
    huggingface.py   TurnaroundCallback for transformers.Trainer(callbacks=[...])
    fastai.py        TurnaroundCallback for Learner(cbs=[...])
    torch_facts.py   what torch tells about a network, an optimiser and a loader, for the three above
    keras_data.py    what Keras does not tell a callback: the batch size and the number of images of a fit
    keras_wait.py    how long a step on TensorFlow waits for its batch, which is fetched within it
    holding.py       what all of them share: facts of the user go before those that were read; nothing here raises
"""
