"""Folders as people have them: what is read, and what is asked about."""

from pathlib import Path

import pytest

from mecam.data.domains import DataError
from mecam.data.folder import scan
from mecam.data.open import open_data
from mecam.data.scan import Scan
from tests.data.folders import make_folder
from tests.data.test_folder import tree


def read(found: Scan) -> dict[str, dict[str, list[str]]]:
    """Return the files by domain and class."""
    return {
        domain: {
            name: [file for file, of in zip(files, labels, strict=True) if of == label]
            for label, name in enumerate(found.classes)
        }
        for domain, files, labels in zip(found.domains, found.files, found.file_labels, strict=True)
    }


class TestQuestions:
    """A layout that is easily misread is an error that asks, and says what to type."""

    @pytest.mark.parametrize(
        ("files", "message", "answers"),
        [
            (
                ["train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "test/dog/1.png"],
                r"folders that look like splits of one data set: 'test', 'train', 'val'. Which of its images are to be "
                r"trained on\? Those of one split, as one domain: give ROOT/train with --layout class, .* Those of "
                "all, as one domain: --layout any/class. If the splits are the domains: --layout domain/class",
                ["train --layout class", "--layout any/class", "--layout domain/class"],
            ),
            (
                ["Train/lab/cat/1.png", "Train/home/cat/1.png", "Test/lab/cat/1.png"],
                "'Test', 'Train'. .*Those of one split: give ROOT/Train with --layout domain/class.*any/domain/class",
                ["Train --layout domain/class", "--layout any/domain/class"],
            ),
            (["train/cat/1.png", "train/dog/1.png"], "splits of one data set: 'train'.", ["--layout domain/class"]),
            (
                ["lab/train/cat/1.png", "lab/test/cat/1.png", "home/train/cat/1.png"],
                "splits of one data set: 'test', 'train', inside 'home', 'lab'.* --layout domain/any/class",
                ["--layout domain/any/class"],
            ),
            (
                ["cat/train/1.png", "cat/valid/1.png", "dog/train/1.png"],
                "'train', 'valid', inside 'cat', 'dog'.*as one domain, give --layout class",
                ["--layout class"],
            ),
            (
                ["a/cat/train/1.png", "a/cat/test/1.png", "b/cat/train/1.png"],
                "'test', 'train', inside the class folders. Training would use the images of all of them",
                ["--layout domain/class"],
            ),
            (
                ["cat/photo/1.png", "cat/sketch/1.png", "dog/photo/1.png", "dog/sketch/1.png"],
                r"look like domains: 'photo', 'sketch'; and those of ROOT like classes: 'cat', 'dog'. Did you mean "
                r"root/<class>/<domain>/<image>\? .*--layout class/domain. If it is right as it is, .*domain/class",
                ["--layout class/domain", "--layout domain/class"],
            ),
            (["cat/hospital 1/1.png", "cat/hospital 2/1.png"], "look like domains", ["--layout class/domain"]),
            (["cat/2019/1.png", "cat/2020/1.png"], "look like domains: '2019', '2020'", ["--layout class/domain"]),
            (
                ["PACS/photo/cat/1.png", "PACS/art/cat/1.png"],
                r"a single folder, 'PACS', and its images lie three folders deep. Is 'PACS' the folder of the "
                r"domains\? Then give ROOT/PACS. .*--layout domain/class",
                ["PACS", "--layout domain/class"],
            ),
            (
                ["cat/1.png", "dog/1.png"],
                r"the images of ROOT lie in 'cat', 'dog', and not in folders inside; expected "
                r"root/<domain>/<class>/<image>. Are these the classes\? .*--domain-from exif:Model.*--layout class",
                ["--layout class"],
            ),
        ],
    )
    def test_they_name_answers_that_work(
        self, tmp_path: Path, files: list[str], message: str, answers: list[str]
    ) -> None:
        root = tree(tmp_path / "root", *files)
        with pytest.raises(DataError, match=message.replace("ROOT", str(root))):
            scan(root, allow_missing_classes=True)
        for answer in answers:
            folder, _, layout = answer.rpartition("--layout ") if "--layout" in answer else (answer, "", None)
            found = scan(root / folder.strip(), layout=layout, allow_missing_classes=True)
            assert len(found) == sum(file.startswith(folder.strip()) for file in files)

    @pytest.mark.parametrize(
        "files",
        [
            ["photo/cat/1.png", "photo/dog/1.png", "sketch/cat/1.png", "sketch/dog/1.png"],
            ["cat/bus/1.png", "cat/train/1.png", "dog/bus/1.png", "dog/train/1.png"],  # a class called train
            ["north/camera/1.png", "north/phone/1.png", "south/camera/1.png", "south/phone/1.png"],
            ["site 1/photo/1.png", "site 1/painting/1.png", "site 2/photo/1.png", "site 2/painting/1.png"],
            ["a/lab/1.png", "b/lab/1.png"],  # one class
            ["a/cat/2019/1.png", "a/cat/2020/2.png", "b/cat/2019/1.png"],
        ],
    )
    def test_other_folders_are_read_without_one(self, tmp_path: Path, files: list[str]) -> None:
        found = scan(tree(tmp_path, *files))
        assert found.domains == tuple(sorted({file.split("/")[0] for file in files}))
        assert found.classes == tuple(sorted({file.split("/")[1] for file in files}))


class TestLayouts:
    def test_domains_inside_classes(self, tmp_path: Path) -> None:
        root = tree(tmp_path, "cat/photo/1.png", "cat/sketch/2.png", "dog/photo/deep/3.png", "dog/sketch/4.png")
        assert read(scan(root, layout="class/domain")) == {
            "photo": {"cat": ["cat/photo/1.png"], "dog": ["dog/photo/deep/3.png"]},
            "sketch": {"cat": ["cat/sketch/2.png"], "dog": ["dog/sketch/4.png"]},
        }

    def test_other_folders_between(self, tmp_path: Path) -> None:
        root = tree(tmp_path, "test/lab/cat/1.png", "train/lab/cat/2.png", "train/home/cat/3.png")
        assert read(scan(root, layout="any/domain/class")) == {
            "home": {"cat": ["train/home/cat/3.png"]},
            "lab": {"cat": ["test/lab/cat/1.png", "train/lab/cat/2.png"]},
        }

    def test_classes_alone_are_one_domain(self, tmp_path: Path) -> None:
        found = scan(tree(tmp_path / "pets", "cat/1.png", "dog/2.png"), layout="class")
        assert read(found) == {"pets": {"cat": ["cat/1.png"], "dog": ["dog/2.png"]}}

    @pytest.mark.parametrize("layout", ["", "domain", "class/class", "domain/classes", "domain/domain/class"])
    def test_others_are_refused(self, tmp_path: Path, layout: str) -> None:
        with pytest.raises(DataError, match=r"layout=.* is not allowed; .*class once.*such as domain/class"):
            scan(tree(tmp_path, "a/cat/1.png"), layout=layout)

    def test_a_domain_without_images_is_refused(self, tmp_path: Path) -> None:
        root = tree(tmp_path, "cat/a/1.png", "cat/b/x.txt", "dog/a/1.png")
        with pytest.raises(DataError, match=r"no images in the domain 'b' of .*Expected root/<class>/<domain>/<image>"):
            scan(root, layout="class/domain")

    @pytest.mark.parametrize("setting", [{"layout": "class/domain"}, {"domain_from": "(.)"}])
    def test_what_has_domains_of_its_own_takes_none(self, tmp_path: Path, setting: dict[str, str]) -> None:
        from mecam.data.pack import pack

        store = pack(make_folder(tmp_path / "data"), tmp_path / "store")
        with pytest.raises(
            DataError, match=r"is for folders of images: .*store is a store, whose domains are fixed; give this"
        ):
            open_data(store.path, **setting)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="is for folders of images: the embedded data set"):
            open_data("shapes", **setting)  # type: ignore[arg-type]


class TestDomainsFromPaths:
    def test_a_group_of_the_path_is_the_domain(self, tmp_path: Path) -> None:
        root = tree(tmp_path, "cat/h1_a.png", "cat/h2_a.png", "dog/x/h1_b.png", "dog/h2_b.png")
        assert read(scan(root, domain_from=r"(h\d)_")) == {
            "h1": {"cat": ["cat/h1_a.png"], "dog": ["dog/x/h1_b.png"]},
            "h2": {"cat": ["cat/h2_a.png"], "dog": ["dog/h2_b.png"]},
        }

    @pytest.mark.parametrize(
        ("pattern", "message"),
        [
            ("h(", r"--domain-from 'h\(' is not a regular expression"),
            ("h", r"--domain-from 'h' has 0 groups; it needs one, in parentheses, which is the domain"),
            ("(h)(1)", "has 2 groups"),
            (r"(h\d)_", r"gives no domain for 1 of 2 images: it does not match 'dog/b.png'. Change it .*CSV file"),
            ("(x?)", "gives no domain for 2 of 2 images"),
            ("exif:Modle", r"there is no EXIF entry 'Modle'; did you mean Model"),
        ],
    )
    def test_others_are_refused(self, tmp_path: Path, pattern: str, message: str) -> None:
        with pytest.raises(DataError, match=message):
            scan(tree(tmp_path, "cat/h1_a.png", "dog/b.png"), domain_from=pattern)

    def test_splits_are_asked_about(self, tmp_path: Path) -> None:
        root = tree(tmp_path, "train/cat/h1_a.png", "test/cat/h2_a.png")
        with pytest.raises(DataError, match=r"'test', 'train', where root/<class>/<image> is expected.*any/class"):
            scan(root, domain_from=r"(h\d)_")
        assert scan(root, domain_from=r"(h\d)_", layout="any/class").domains == ("h1", "h2")

    def test_domains_are_given_once(self, tmp_path: Path) -> None:
        root = tree(tmp_path, "a/cat/1.png")
        with pytest.raises(DataError, match="layout=domain/class has domains, and so does --domain-from"):
            scan(root, domain_from="(.)", layout="domain/class")


def test_the_camera_is_the_domain(tmp_path: Path) -> None:
    from PIL import Image

    for number, camera in enumerate(("Pixel 7", "EOS R5\0", "Pixel 7", "EOS R5")):
        path = tmp_path / ("cat", "dog")[number // 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[272] = camera  # Model
        Image.new("RGB", (8, 8)).save(path, exif=exif)
    assert read(scan(tmp_path, domain_from="exif:Model")) == {
        "EOS R5": {"cat": ["cat/1.jpg"], "dog": ["dog/3.jpg"]},
        "Pixel 7": {"cat": ["cat/0.jpg"], "dog": ["dog/2.jpg"]},
    }
    Image.new("RGB", (8, 8)).save(tmp_path / "dog" / "sent.jpg")
    with pytest.raises(DataError, match=r"no domain for 1 of 5 images: there is no such EXIF entry in 'dog/sent.jpg'"):
        scan(tmp_path, domain_from="exif:Model")
