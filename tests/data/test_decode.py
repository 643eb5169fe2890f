import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, features

from mecam.data import decode as decoding
from mecam.data.decode import decode, measure, resample
from mecam.data.domains import DataError

RED, WHITE, BLUE = [255, 0, 0], [255, 255, 255], [0, 0, 255]
GRADIENT = np.arange(12 * 8 * 3, dtype=np.uint8).reshape(8, 12, 3)


def read(path: Path) -> NDArray[np.uint8]:
    pixels = decode(path, name=path.name)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert np.array_equal(pixels, decode(path.read_bytes(), name=path.name))
    return pixels


def png(path: Path, width: int, height: int, *, depth: int, colour: int, rows: bytes) -> Path:
    """A PNG by hand, for what Pillow does not write; rows without their filter bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    stride = len(rows) // height if height else 0
    filtered = b"".join(b"\0" + rows[row * stride : (row + 1) * stride] for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(filtered)) + chunk(b"IEND", b"")
    )
    return path


@pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "tif"])
def test_rgb_is_kept_as_it_is(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(GRADIENT).save(tmp_path / f"a.{suffix}")
    assert np.array_equal(read(tmp_path / f"a.{suffix}"), GRADIENT)


@pytest.mark.parametrize(("suffix", "options"), [("jpg", {"quality": 95}), ("webp", {"lossless": True}), ("gif", {})])
def test_other_formats_come_close(tmp_path: Path, suffix: str, options: dict[str, int]) -> None:
    Image.new("RGB", (12, 8), (200, 40, 90)).save(tmp_path / f"a.{suffix}", **options)
    pixels = read(tmp_path / f"a.{suffix}")
    assert pixels.shape == (8, 12, 3)
    assert np.abs(pixels.astype(int) - [200, 40, 90]).max() <= 4


class TestNewerFormats:
    @pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")
    def test_avif(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[274] = 6  # on its side
        Image.new("RGB", (12, 8), (200, 40, 90)).save(tmp_path / "a.avif", exif=exif)
        pixels = read(tmp_path / "a.avif")
        assert pixels.shape == (12, 8, 3)
        assert np.abs(pixels.astype(int) - [200, 40, 90]).max() <= 4
        assert measure(tmp_path / "a.avif", upright_up_to=320) == (12, 8)

    def test_heic(self, tmp_path: Path) -> None:
        pytest.importorskip("pillow_heif", reason="reads and writes HEIC").register_heif_opener()
        Image.new("RGB", (64, 48), (200, 40, 90)).save(tmp_path / "a.heic")
        pixels = read(tmp_path / "a.heic")
        assert pixels.shape == (48, 64, 3)
        assert np.abs(pixels.astype(int) - [200, 40, 90]).max() <= 4

    @pytest.mark.parametrize("brands", [b"heic\0\0\0\0mif1heic", b"mif1\0\0\0\0mif1miaf", b"heix\0\0\0\0mif1"])
    def test_heic_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brands: bytes) -> None:
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        (tmp_path / "a.jpg").write_bytes(b"\0\0\0\x1cftyp" + brands + bytes(100))
        for source in (tmp_path / "a.jpg", (tmp_path / "a.jpg").read_bytes()):
            with pytest.raises(
                DataError, match=r"^a is a HEIC image, which pillow-heif reads: pip install pillow-heif"
            ):
                decode(source, name="a")

    def test_avif_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(features, "check", lambda _name: False)
        with pytest.raises(DataError, match=r"^a is an AVIF image, which a newer Pillow reads: pip install --upgrade"):
            decode(b"\0\0\0\x1cftypavif\0\0\0\0avifmif1" + bytes(100), name="a")

    def test_other_containers_are_no_images(self) -> None:
        with pytest.raises(DataError, match="a cannot be read as an image"):
            decode(b"\0\0\0\x1cftypmp42\0\0\0\0isommp42" + bytes(100), name="a")


def test_the_name_does_not_decide_the_format(tmp_path: Path) -> None:
    Image.fromarray(GRADIENT).save(tmp_path / "a.jpg", format="PNG")
    assert np.array_equal(read(tmp_path / "a.jpg"), GRADIENT)


def test_grayscale_has_three_equal_channels(tmp_path: Path) -> None:
    Image.fromarray(GRADIENT[..., 0]).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png"), np.repeat(GRADIENT[..., :1], 3, axis=2))


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png").tolist() == [[WHITE, [0, 0, 0]]]


def palette_image() -> Image.Image:
    image = Image.new("P", (3, 1))
    image.putdata([0, 1, 2])
    image.putpalette([*RED, *BLUE, 0, 255, 0])
    return image


def test_palette_gives_its_colours(tmp_path: Path) -> None:
    palette_image().save(tmp_path / "a.png")
    assert read(tmp_path / "a.png").tolist() == [[RED, BLUE, [0, 255, 0]]]


@pytest.mark.parametrize("transparency", [1, b"\xff\x00\xff"], ids=["one index", "alpha of each colour"])
def test_transparent_palette_colours_are_white(tmp_path: Path, transparency: int | bytes) -> None:
    palette_image().save(tmp_path / "a.png", transparency=transparency)
    assert read(tmp_path / "a.png").tolist() == [[RED, WHITE, [0, 255, 0]]]


def test_alpha_lies_on_white(tmp_path: Path) -> None:
    rgba = np.array([[[255, 0, 0, 255], [0, 0, 0, 0], [0, 0, 0, 128]]], dtype=np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png").tolist() == [[RED, WHITE, [127, 127, 127]]]


def test_gray_with_alpha_lies_on_white(tmp_path: Path) -> None:
    Image.fromarray(np.array([[[90, 255], [90, 0]]], dtype=np.uint8)).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png").tolist() == [[[90, 90, 90], WHITE]]


def test_a_transparent_colour_of_an_rgb_file_is_white(tmp_path: Path) -> None:
    Image.fromarray(np.array([[RED, BLUE]], dtype=np.uint8)).save(tmp_path / "a.png", transparency=(0, 0, 255))
    assert read(tmp_path / "a.png").tolist() == [[RED, WHITE]]


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk_becomes_rgb(tmp_path: Path, suffix: str) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / f"a.{suffix}")
    assert np.abs(read(tmp_path / f"a.{suffix}").astype(int) - RED).max() <= 4


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_gray_is_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 257, 300, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{suffix}")
    assert read(tmp_path / f"a.{suffix}")[0, :, 0].tolist() == [0, 1, 1, 128, 255]


def test_16_bit_rgb_is_scaled(tmp_path: Path) -> None:
    rows = struct.pack(">6H", 65535, 32768, 0, 257, 51400, 65535)
    pixels = read(png(tmp_path / "a.png", 2, 1, depth=16, colour=2, rows=rows))
    assert np.abs(pixels.astype(int) - [[[255, 127.5, 0], [1, 200, 255]]]).max() <= 1


def test_16_bit_gray_ppm_is_scaled(tmp_path: Path) -> None:
    (tmp_path / "a.ppm").write_bytes(b"P5 3 1 65535\n" + struct.pack(">3H", 0, 32768, 65535))
    assert read(tmp_path / "a.ppm")[0, :, 0].tolist() == [0, 128, 255]


def test_32_bit_and_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 70_000]], dtype=np.int32)).save(tmp_path / "a.tif")
    Image.fromarray(np.array([[0, 0.5]], dtype=np.float32)).save(tmp_path / "b.tif")
    with pytest.raises(DataError, match=r"a\.tif has 32-bit pixels"):
        decode(tmp_path / "a.tif", name="a.tif")
    with pytest.raises(DataError, match=r"b\.tif has floating-point pixels"):
        decode(tmp_path / "b.tif", name="b.tif")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    undone = {  # how a camera stores the upright picture under each value
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(undone[orientation](GRADIENT))).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read(tmp_path / "a.png"), GRADIENT)


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif"])
def test_animations_give_their_first_frame(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    options = {"lossless": True} if suffix == "webp" else {}
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:], **options)
    assert (read(tmp_path / f"a.{suffix}") == RED).all()


@pytest.mark.attack("Untrusted files")
@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "webp", "ppm", "tif", "gif"])
def test_truncated_files_are_refused_by_name(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for source in (path, path.read_bytes()):
        with pytest.raises(DataError, match=rf"photo/dog/a\.{suffix} cannot be read as an image"):
            decode(source, name=f"photo/dog/a.{suffix}")


@pytest.mark.attack("Untrusted files")
@pytest.mark.parametrize("content", [b"no image", b"\xff\xd8\xff\xe0garbage", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_what_is_no_image_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    for source in (tmp_path / "a.jpg", content):
        with pytest.raises(DataError, match=r"photo/a\.jpg cannot be read as an image"):
            decode(source, name="photo/a.jpg")


@pytest.mark.attack("Untrusted files")
def test_empty_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    for source in (tmp_path / "a.jpg", b""):
        with pytest.raises(DataError, match=r"a\.jpg is empty"):
            decode(source, name="a.jpg")


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file none\.png"):
        decode(tmp_path / "none.png", name="none.png")
    with pytest.raises(DataError, match=r"none\.png cannot be read as an image"):
        decode(tmp_path, name="none.png")


@pytest.mark.attack("Untrusted files")
@pytest.mark.parametrize(("width", "height"), [(0, 3), (3, 0)])
def test_images_without_pixels_are_refused(tmp_path: Path, width: int, height: int) -> None:
    path = png(tmp_path / "a.png", width, height, depth=8, colour=0, rows=bytes(width * height))
    with pytest.raises(DataError, match=r"a\.png"):
        decode(path, name="a.png")


@pytest.mark.attack("Untrusted files")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    for width, height in ((10_000, 9_000), (60_000, 60_000)):  # above Pillow's warning; above Pillow's own refusal
        path = png(tmp_path / "a.png", width, height, depth=8, colour=2, rows=b"")
        with pytest.raises(DataError, match=r"a\.png is refused as a decompression bomb"):
            decode(path, name="a.png")


def odd_images(folder: Path) -> dict[str, Path]:
    """One of each kind that is read in another way, 23 x 37, each on its side in another way."""
    random = np.random.default_rng(0)
    rgb = Image.fromarray(random.integers(0, 256, (37, 23, 3), dtype=np.uint8))
    rgba = Image.fromarray(random.integers(0, 256, (37, 23, 4), dtype=np.uint8))
    gray16 = Image.fromarray(random.integers(0, 65536, (37, 23), dtype=np.uint16))
    kinds: dict[str, tuple[Image.Image, dict[str, object]]] = {
        "rgb.png": (rgb, {}), "palette.png": (rgb.quantize(16), {"transparency": bytes(range(0, 256, 16))}),
        "alpha.png": (rgba, {}), "gray alpha.png": (rgba.convert("LA"), {}), "16 bits.png": (gray16, {}),
        "cmyk.jpg": (rgb.convert("CMYK"), {}), "gray.jpg": (rgb.convert("L"), {}),
        "progressive.jpg": (rgb, {"progressive": True}),
        "rgb.tif": (rgb, {}), "16 bits.tif": (gray16, {}), "bits.png": (rgb.convert("1"), {}),
    }  # fmt: skip
    files = {}
    for number, (name, (image, options)) in enumerate(kinds.items()):
        for orientation in {1, 2 + number % 7, 2 + (number + 3) % 7}:
            exif = Image.Exif()
            exif[0x0112] = orientation
            path = folder / f"{orientation} {name}"
            image.save(path, exif=exif, **options)
            files[path.name] = path
    return files


def test_strips_change_no_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = odd_images(tmp_path)
    whole = {name: decode(path, name=name) for name, path in files.items()}
    for strip in (1, 100, 23 * 36):
        monkeypatch.setattr(decoding, "STRIP_PIXELS", strip)
        for name, path in files.items():
            assert np.array_equal(decode(path, name=name), whole[name]), name


@pytest.mark.parametrize("size", [(8, 8), (37, 10), (10, 23), (37, 23), (23, 37), (64, 50)])
def test_resampled_pictures_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setattr(decoding, "STRIP_PIXELS", 100)
    for name, path in odd_images(tmp_path).items():
        pixels = decode(path, name=name)
        expected = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR)
        with path.open("rb") as file:
            found = resample(file, name=name, size=size)
        assert np.array_equal(found.pixels, np.asarray(expected)), name
        assert (found.height, found.width) == pixels.shape[:2]
        with monkeypatch.context() as large:
            large.setattr(decoding, "LARGE_PIXELS", 0)
            in_strips = resample(path, name=name, size=size).pixels
        assert np.abs(in_strips.astype(int) - found.pixels).max() <= 1, name


def test_measuring_agrees_with_decoding(tmp_path: Path) -> None:
    for name, path in odd_images(tmp_path).items():
        assert measure(path, upright_up_to=37) == decode(path, name=name).shape[:2], name
        assert sorted(measure(path, upright_up_to=36)) == [23, 37]


@pytest.mark.attack("Untrusted files")
def test_a_picture_too_thin_to_be_resampled_is_refused(tmp_path: Path) -> None:
    path = png(tmp_path / "a.png", 1, 300_000, depth=8, colour=0, rows=bytes(300_000))
    assert decode(path, name="a.png").shape == (300_000, 1, 3)
    with pytest.raises(DataError, match=r"a\.png is too thin: 1 x 300000 cannot be resampled to 320 x 320"):
        resample(path, name="a.png", size=(320, 320))


@pytest.mark.parametrize("content", [b"", b"no image"])
def test_open_files_are_refused_as_paths_are(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with (tmp_path / "a.png").open("rb") as file, pytest.raises(DataError) as opened:
        resample(file, name="a.png", size=(8, 8))
    with pytest.raises(DataError) as named:
        decode(tmp_path / "a.png", name="a.png")
    assert str(opened.value) == str(named.value)


def test_the_limit_can_be_moved(tmp_path: Path) -> None:
    Image.fromarray(GRADIENT).save(tmp_path / "a.png")
    assert decode(tmp_path / "a.png", name="a.png", max_pixels=96).shape == (8, 12, 3)
    with pytest.raises(DataError, match="12 x 8 is more than 95 pixels"):
        decode(tmp_path / "a.png", name="a.png", max_pixels=95)
