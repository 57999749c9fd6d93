"""Write the metadata image and report its change; changes within 20 ms are written together.

Owned by the controller process, the image file's only writer. The generation continues from the
file of the previous incarnation, so it never goes back while the box runs. An image with the same
content keeps its generation. Weak: with an unreadable file of an earlier release the generation
restarts at 1; processes of two releases never share a box.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.cluster.metadata_image import ImageUnreadable, MetadataImage, difference, read_image, write_image

COALESCE_NS = 20_000_000


class ImagePublisher:
    """`make_image(generation)` builds the image; `on_published(generation)` is called for each new
    one.
    """

    def __init__(self, path: str, make_image: Callable[[int], MetadataImage], on_published: Callable[[int], None]) -> None:
        self._path = path
        self._make_image = make_image
        self._on_published = on_published
        self._waiting: list[Callable[[None], None]] = []
        self._last_write_ns = -COALESCE_NS
        self.writes = 0
        try:
            self.image = read_image(path) or MetadataImage.empty()
        except ImageUnreadable:
            self.image = MetadataImage.empty()

    @property
    def generation(self) -> int:
        return self.image.generation

    @property
    def is_pending(self) -> bool:
        return bool(self._waiting)

    def publish(self, on_done: Callable[[None], None]) -> None:
        """Write the image in one of the next turns, then call `on_done`."""
        self._waiting.append(on_done)

    def forget_waiting(self) -> None:
        """Forget waiting operations, which were dropped. The next arrival publishes."""
        self._waiting.clear()

    def do_work(self, now_ns: int) -> int:
        """Write if an operation waits and the last write was at least 20 ms ago."""
        if not self._waiting or now_ns - self._last_write_ns < COALESCE_NS:
            return 0
        waiting, self._waiting = self._waiting, []
        image = self._make_image(self.generation + 1)
        if self.generation == 0 or not difference(self.image, image).is_empty:
            write_image(self._path, image)
            self.image = image
            self.writes += 1
            self._last_write_ns = now_ns
            self._on_published(image.generation)
        for on_done in waiting:
            on_done(None)
        return 1
