"""Inference: a trained network classifies, is exported and is served. Needs torch, as training does.

Enters: a run directory, and pictures from a file, a stream, a browser or Python.
Leaves: classes with their probabilities; files in other formats, each checked against the trained network.

    trained.py     a run directory -> its network, class names and preprocessing, all checked
    images.py      what a person hands over -> squares of pixels, by the rules of training
    predictor.py   squares -> classes with probabilities, in batches
    evaluate.py    a network on other images with known labels
    label_check.py  out-of-sample probabilities: of a run, or of classifiers trained in folds
    graph.py       network and preprocessing as one module: bytes in, logits out
    formats.py     that module as ONNX, TorchScript, torch.export; the weights as safetensors
    export.py      one such file, held against the trained network on pictures, and put in its place
    card.py        the model card beside it
    service.py     the HTTP application: a page to drop a picture on, and /classify
    uploads.py     the bytes of a request, within limits
    batcher.py     requests that come at once share a pass through the network
    server.py      its address; what bounds and guards it is in web/
"""
