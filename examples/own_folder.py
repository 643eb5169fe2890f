"""Train on a folder of images and predict with the model. Run: python examples/own_folder.py [steps] [folder].

The layout is root/<domain>/<class>/<image>. Without a folder, the program writes the embedded set as PNG files first.
On the command line:

    mecam train --data root --optimizer mecam --out model
    mecam predict model root/sketch
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import mecam
from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.serving import find_images, load_model

SETTINGS = {"optimizer": "mecam", "backbone": "resnet8", "image_size": 32, "lr": 3e-3, "evaluate_every": 50}


def write_pictures(root: Path, per_class: int = 20) -> Path:
    """Write the embedded set as PNG files."""
    data = shapes(per_class=per_class)
    for domain, name in enumerate(data.domains):
        for index, pixels in enumerate(data.images(domain, range(7 * per_class))):
            file = root / data.sample_name(domain, index)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file)
        print(f"{root / name}: {7 * per_class} pictures")
    return root


def main(steps: int = 200, folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        root = write_pictures(work / "pictures") if folder is None else Path(folder)

        # estimate the accuracy on a new domain: leave one out
        domains = sorted(place.name for place in root.iterdir() if place.is_dir())
        held_out = domains[-1]
        recipe = Recipe(**{**SETTINGS, "data": str(root), "target": held_out, "steps": steps})
        run = mecam.train(recipe, work / "left-one-out")
        print(f"trained without {held_out}; accuracy there: {100 * run.read_result()['target_accuracy']:.1f} %")

        # train the model for a new domain: every domain is a source
        run = mecam.train(Recipe(**{**SETTINGS, "data": str(root), "steps": steps}), work / "model")
        model = load_model(run.path)
        for prediction in model.predictions(find_images([root / held_out])[:5]):
            image = prediction.image.relative_to(root)
            print(f"{image}: {prediction.label} ({prediction.probability:.2f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
