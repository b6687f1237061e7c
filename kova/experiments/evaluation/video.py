"""A video of an episode in which the value and its 2σ band run along the bottom, as the environment pays."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from kova.experiments.errors import UsageError
from kova.experiments.evaluation.play import Episode
from kova.experiments.evaluation.wording import UNITS, decimals
from kova.experiments.files import check_file, replacing
from kova.installation import pip_install

#: Pillow's own font has no σ.
FONT = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
BAND, LINE, CURSOR, INK = (253, 208, 162), (217, 95, 2), (27, 158, 119), (60, 60, 60)
#: Shares of the first line that the range and the present value may take.
RANGE, NOW = 0.65, 0.3

Frame = npt.NDArray[np.uint8]


def check(path: Path) -> None:
    """Check that a video can be written, before an episode is played for it.

    Raises:
        UsageError: It is not an mp4, the encoder is missing, or the file cannot be written.
    """
    if path.suffix != ".mp4":
        raise UsageError(f"--video must name an .mp4 file, got {path}; write {path.stem or 'video'}.mp4")
    for module in ("imageio", "imageio_ffmpeg"):
        if find_spec(module) is None:
            raise UsageError(f"{module} is missing; --video needs: {pip_install('experiments')}")
    check_file(path, "--video")


def write(path: Path, episode: Episode, fps: int) -> None:
    """Write the episode as an mp4."""
    import imageio.v2 as imageio

    strip = Strip(episode)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as draft,
        imageio.get_writer(draft, fps=fps, codec="libx264", macro_block_size=2) as writer,
    ):
        # A picture is composed when it is written: a thousand large ones would not fit in memory.
        for index, frame in enumerate(episode.frames):
            writer.append_data(_even(np.vstack([frame, strip.at(index)])))  # type: ignore[attr-defined]


class Strip:
    """The value over the whole episode, drawn once, with a cursor at the present frame.

    Args:
        episode: With at least one picture; the strip is as wide.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._width = episode.frames[0].shape[1]
        # Pictures are from 200 to 1000 pixels wide; the text scales with them.
        self._size = int(np.clip(self._width / 32, 11, 28))
        self._font = ImageFont.truetype(FONT, self._size)
        # Two lines of text are above the band.
        self._margin, self._top = self._size // 2, 3 * self._size
        self._height = 8 * self._size
        self._canvas = Image.new("RGB", (self._width, self._height), "white")
        self._x = np.linspace(self._margin, self._width - self._margin, episode.length)
        if episode.mean is None or episode.stddev is None:
            self._write(self._canvas, "this critic keeps no uncertainty", INK, share=1.0)
        else:
            self._draw_band(episode.mean, episode.stddev)

    def at(self, index: int) -> Frame:
        """Return the strip of a frame."""
        mean, stddev = self._episode.mean, self._episode.stddev
        now = self._canvas.copy()
        if mean is not None and stddev is not None:
            x = self._x[index]
            ImageDraw.Draw(now).line([(x, self._top), (x, self._height - self._margin)], fill=CURSOR, width=2)
            digits = self._digits
            self._write(now, f"{mean[index]:.{digits}f} ± {2 * stddev[index]:.{digits}f}", CURSOR, share=NOW)
        return np.asarray(now)

    def _draw_band(self, mean: npt.NDArray[np.float64], stddev: npt.NDArray[np.float64]) -> None:
        upper, lower = mean + 2 * stddev, mean - 2 * stddev
        low, high = float(lower.min()), float(upper.max())
        # The same for every frame: text that changes its length cannot be read.
        self._digits = decimals(2 * float(np.median(stddev)))
        self._write(
            self._canvas, f"value ± 2σ, from {low:.{self._digits}f} to {high:.{self._digits}f}", INK, share=RANGE
        )
        self._write(self._canvas, f"discounted return, {UNITS}", INK, share=1.0, line=1)
        bottom, tall = self._height - self._margin, self._height - self._margin - self._top

        def y(values: Any) -> Any:
            return bottom - (values - low) / max(high - low, 1e-9) * tall

        draw = ImageDraw.Draw(self._canvas)
        if len(mean) > 1:
            outline = [*zip(self._x, y(upper), strict=True), *reversed(list(zip(self._x, y(lower), strict=True)))]
            draw.polygon(outline, fill=BAND)
            draw.line(list(zip(self._x, y(mean), strict=True)), fill=LINE, width=max(2, self._size // 8))

    def _write(self, canvas: Image.Image, text: str, ink: tuple[int, int, int], *, share: float, line: int = 0) -> None:
        """Write a text into a share of a line: what is in the colour of the cursor at its end, other at its start."""
        x, anchor = (self._width - self._margin, "ra") if ink is CURSOR else (self._margin, "la")
        wide = share * (self._width - 2 * self._margin)
        # Pictures may be narrower than the words.
        size = max(1.0, self._size * min(1.0, wide / self._font.getlength(text)))
        y = self._margin // 2 + line * self._size * 5 // 4
        ImageDraw.Draw(canvas).text((x, y), text, fill=ink, font=ImageFont.truetype(FONT, size), anchor=anchor)


def _even(frame: Frame) -> Frame:
    """Pad to even width and height, which the encoder needs."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
