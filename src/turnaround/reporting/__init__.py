"""Numbers -> what people read. No arithmetic beyond rounding, no torch.

Enters: recorded runs and findings. Leaves: text, tables, pages.

    terminal.py     stdout and stderr, what is safe to show there, JSON, a bar for preparations
    training_display.py  a training as a person sees it, and the page that it leaves
    run_text.py     a run at its end, and runs side by side
    check_report.py   what is wrong with a folder of images, for the terminal and as a page with the pictures
    verify_text.py    which files are whole, damaged or unknown
    evaluate_report.py  a network on other images, for the terminal, as a page and as JSON
    pictures.py       small pictures for a page; training images before and after their variation, as a page
    bench_text.py   the ceilings of a machine
    prices_text.py  the user's price table
    estimate_text.py  an estimate from zero runs for the terminal
    forecast_text.py    a forecast for the terminal
    forecast_words.py   its figures and sentences
    range_text.py   forecasts of a range of workers for the terminal
    range_words.py  the best of the range in sentences, on the page too
    progress.py     a training while it runs
    study_text.py   a study while it runs
    survey_text.py  what all runs say, for the terminal: jobs, findings, what was left out
    survey_json.py  the same for programs
    proposal.py     a compute-time proposal on two printed pages, with its figures as SVG and CSV
    svg_chart.py    values with intervals against workers, as SVG
    notebook.py     runs as tables for pandas, and as html in a notebook
    comparison_table.py  the comparison table of one job
    charts.py       curves and bars in text, and those of one job
    text_layout.py  text in lines no wider than the terminal
"""
