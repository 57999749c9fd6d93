"""Follows the metadata image: told that there is a new one, it reads the file with the next turn and gives it to its view.

Owned by one acceptor, ingest, coordinator or replica-fetcher. A file that cannot be read is logged, and the last image goes on. Weak spot: an
image is read whole for each change.
"""

from __future__ import annotations

from typing import Protocol

from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.cluster.metadata_image import ImageUnreadable, MetadataImage, read_image


class ImageView(Protocol):
    """What has an image."""

    image: MetadataImage

    def set_image(self, image: MetadataImage) -> None: ...


class ImageFollower:
    """`is_stale`: there may be a newer image than the one in the view."""

    def __init__(self, layout: BoxLayout, view: ImageView, log: Logger) -> None:
        self._path = layout.image_file
        self._view = view
        self._log = log
        self.is_stale = True

    def on_changed(self, _generation: int) -> None:
        """The controller says so."""
        self.is_stale = True

    def load(self) -> MetadataImage | None:
        """Read it; the new image, if it is another one."""
        self.is_stale = False
        try:
            image = read_image(self._path, self._view.image)
        except ImageUnreadable as error:
            self._log.error(f"the metadata image could not be read: {error}; the last one is used on")
            return None
        if image is None or image.generation == self._view.image.generation:
            return None
        self._view.set_image(image)
        return image
