"""The lab's program, as far as its report tells: Keras and Horovod, a backbone with a head of its own, a generator.

    horovodrun -np 2 --gloo python lab10.py FOLDER --epochs 10 --optimizer adam --learning-rate 0.1

FOLDER holds train/ and a validation part, each with class folders. The learning rate is multiplied by the number of
processes, images go one by one through ImageDataGenerator (rotation, zoom, shift, flip), each process draws its own
order, and the optimizer is Horovod's. Nothing is downloaded: the backbone starts from random weights.

One line records it: TurnaroundCallback in the list of callbacks.

With --alone FILE nothing is trained: FILE gets the images/s of the generator without a network, and of the network
without a generator, over all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BACKBONES = {"small": "", "mobilenet_v2": "MobileNetV2", "vgg16": "VGG16", "resnet50": "ResNet50"}
"""By our name, that of keras.applications; `small` is made here, as turnaround's network of that name."""
SMALL_WIDTHS = (16, 32, 64, 128)
VALIDATION_FOLDERS = ("val", "valid", "validation", "test")
WARM_UP_STEPS = 3
DRIFT = 1e-6
"""Of the weights, as a share: processes that agree in every gradient do not differ by more."""


def parser() -> argparse.ArgumentParser:
    """Without TensorFlow, so that it can be asked anywhere."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path)
    made.add_argument("--backbone", choices=BACKBONES, default="mobilenet_v2")
    made.add_argument("--fine-tune", action="store_true", help="every layer learns; otherwise the head alone")
    made.add_argument("--size", type=int, default=224, help="side of the square images in pixels")
    made.add_argument("--batch", type=int, default=32, help="images of each process in a step")
    made.add_argument("--epochs", type=int, default=10)
    made.add_argument("--optimizer", choices=("adam", "adadelta"), default="adadelta")
    made.add_argument("--learning-rate", type=float, default=1.0, help="of one process; multiplied by their number")
    made.add_argument("--rotation", type=float, default=5.0, help="degrees either way")
    made.add_argument("--zoom", type=float, default=0.2)
    made.add_argument("--shift", type=float, default=0.2, help="share of the image, either way")
    made.add_argument("--no-flip", dest="flip", action="store_false")
    made.add_argument("--extra-work-ms", type=float, default=0.0, help="for each image, to see an input that is slow")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", type=Path, help="where the run is recorded; default: runs/recorded")
    made.add_argument("--alone", type=Path, metavar="FILE", help="measure the parts one by one in place of training")
    made.add_argument("--seconds", type=float, default=5.0, help="of each measurement with --alone")
    return made


def validation_folder(folder: Path) -> Path:
    """The part that is not trained on."""
    found = next((folder / name for name in VALIDATION_FOLDERS if (folder / name).is_dir()), None)
    if found is None or not (folder / "train").is_dir():
        raise SystemExit(f"{folder} must hold train/ and one of {', '.join(VALIDATION_FOLDERS)}.")
    return found


def threads(cores: int, processes: int) -> int:
    """Of each process: more threads than cores make all of them slower."""
    return max(1, cores // processes)


def delayed(seconds: float) -> Callable[[Any], Any]:
    """A preprocessing function that takes its time and does nothing."""

    def wait(image: Any) -> Any:
        time.sleep(seconds)
        return image

    return wait


def make_generators(options: argparse.Namespace, *, rank: int) -> tuple[Any, Any]:
    """For training, each process in an order of its own, and for validation, all images of which everybody sees."""
    from tensorflow.keras.preprocessing.image import ImageDataGenerator

    varied = ImageDataGenerator(
        rescale=1 / 255,
        rotation_range=options.rotation,
        zoom_range=options.zoom,
        width_shift_range=options.shift,
        height_shift_range=options.shift,
        horizontal_flip=options.flip,
        preprocessing_function=delayed(options.extra_work_ms / 1000) if options.extra_work_ms else None,
    )
    size = (options.size, options.size)
    common = {"target_size": size, "batch_size": options.batch, "class_mode": "categorical"}
    training = varied.flow_from_directory(options.folder / "train", seed=options.seed + rank, **common)
    plain = ImageDataGenerator(rescale=1 / 255)
    validation = plain.flow_from_directory(validation_folder(options.folder), shuffle=False, **common)
    return training, validation


def make_backbone(name: str, size_px: int) -> Any:
    """Images (size, size, 3) in, features (h, w, channels) out."""
    import tensorflow as tf

    if name != "small":
        make = getattr(tf.keras.applications, BACKBONES[name])
        return make(include_top=False, weights=None, input_shape=(size_px, size_px, 3))
    images = tf.keras.Input((size_px, size_px, 3))
    features = tf.keras.layers.ReLU()(convolved(images, SMALL_WIDTHS[0], stride=2))
    for before, width in zip((SMALL_WIDTHS[0], *SMALL_WIDTHS), SMALL_WIDTHS, strict=False):
        stride = 1 if before == width else 2
        inner = tf.keras.layers.ReLU()(convolved(features, width, stride=stride))
        inner = convolved(inner, width, stride=1, gain="zeros")
        short_cut = features if stride == 1 else convolved(features, width, stride=2, kernel=1)
        features = tf.keras.layers.ReLU()(tf.keras.layers.Add()([inner, short_cut]))
    return tf.keras.Model(images, features)


def convolved(x: Any, width: int, *, stride: int, kernel: int = 3, gain: str = "ones") -> Any:
    """A convolution as torch pads it, and batch norm."""
    from tensorflow.keras import initializers, layers

    random = initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    padded = layers.ZeroPadding2D(kernel // 2)(x)
    made = layers.Conv2D(width, kernel, strides=stride, use_bias=False, kernel_initializer=random)(padded)
    return layers.BatchNormalization(gamma_initializer=gain, epsilon=1e-5, momentum=0.9)(made)


def make_model(options: argparse.Namespace, *, num_classes: int, processes: int) -> Any:
    """A backbone, an average over its positions, and one layer."""
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    tf.keras.utils.set_random_seed(options.seed)
    backbone = make_backbone(options.backbone, options.size)
    backbone.trainable = options.fine_tune
    pooled = tf.keras.layers.GlobalAveragePooling2D()(backbone.output)
    head = tf.keras.layers.Dense(num_classes, activation="softmax")(pooled)
    model = tf.keras.Model(backbone.input, head, name=options.backbone)
    kinds = {"adam": tf.keras.optimizers.Adam, "adadelta": tf.keras.optimizers.Adadelta}
    optimizer = hvd.DistributedOptimizer(kinds[options.optimizer](options.learning_rate * processes))
    model.compile(loss="categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    return model


def train(options: argparse.Namespace) -> None:
    import horovod.tensorflow.keras as hvd

    from turnaround.adapters.keras import TurnaroundCallback

    training, validation = make_generators(options, rank=hvd.rank())
    model = make_model(options, num_classes=training.num_classes, processes=hvd.size())
    # The rate of one process: multiplied, it would look like another setting in every configuration.
    facts = {"data": options.folder.name, "learning_rate": options.learning_rate, "seed": options.seed}
    model.fit(
        training,
        steps_per_epoch=max(1, len(training) // hvd.size()),
        epochs=options.epochs,
        validation_data=validation,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            TurnaroundCallback(options.out, fine_tune=options.fine_tune, **facts),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    refuse_if_drifted(model)


def refuse_if_drifted(model: Any) -> None:
    """Horovod with a Keras it does not know averages nothing, and says nothing: the processes' weights would differ."""
    import horovod.tensorflow.keras as hvd
    import numpy as np

    mine = np.array([float(np.abs(weight.numpy()).sum()) for weight in model.trainable_weights])
    mean = hvd.allreduce(mine, name="weights")
    if np.abs(mine - mean).max() > DRIFT * np.abs(mean).max():
        raise SystemExit("The processes have different weights: their gradients were not averaged.")


def measure_alone(options: argparse.Namespace) -> None:
    import horovod.tensorflow.keras as hvd

    training, _ = make_generators(options, rank=hvd.rank())
    model = make_model(options, num_classes=training.num_classes, processes=hvd.size())
    rates = {"input": generator_rate(training, options), "model": model_rate(model, training, options)}
    summed = {name: float(hvd.allreduce(rate, average=False, name=name)) for name, rate in rates.items()}
    if hvd.rank() == 0:
        options.alone.write_text(json.dumps(summed))


def generator_rate(training: Any, options: argparse.Namespace) -> float:
    """Images a second of one process, asked for one batch after the other."""
    import horovod.tensorflow.keras as hvd

    for _ in range(WARM_UP_STEPS):
        next(training)
    hvd.allreduce(0.0, name="begin generator")
    begun_s, images = time.perf_counter(), 0
    while time.perf_counter() - begun_s < options.seconds:
        images += len(next(training)[1])
    return images / (time.perf_counter() - begun_s)


def model_rate(model: Any, training: Any, options: argparse.Namespace) -> float:
    """Images a second of one process that trains on one batch again and again; the weights are thrown away."""
    import tensorflow as tf

    batch = next(training)
    while len(batch[1]) < options.batch:  # the last one of an epoch
        batch = next(training)
    again = iter(tf.data.Dataset.from_tensors(tuple(map(tf.constant, batch))).repeat())
    step = model.make_train_function()
    for _ in range(WARM_UP_STEPS):
        step(again)
    warm_s = time.perf_counter()
    step(again)
    steps = _agreed(max(2, round(options.seconds / (time.perf_counter() - warm_s))))
    begun_s = time.perf_counter()
    for _ in range(steps):
        step(again)
    return float(options.batch * steps / (time.perf_counter() - begun_s))


def _agreed(steps: int) -> int:
    """All processes must take as many steps: each waits for the gradients of the others."""
    import horovod.tensorflow.keras as hvd

    return int(hvd.broadcast(steps, root_rank=0, name="steps"))


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    validation_folder(options.folder)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(threads(len(os.sched_getaffinity(0)), hvd.local_size()))
    if options.alone is None:
        train(options)
    else:
        measure_alone(options)
    hvd.shutdown()


if __name__ == "__main__":
    main()
