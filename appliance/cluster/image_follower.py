"""Follow the metadata image: read the file in the turn after a notification, and pass it to the
process's view.

Owned by one acceptor, ingest, coordinator or replica-fetcher. If a file cannot be read, the error
is logged and the last image stays in use. Weak: an image is read whole for each change.
"""

from __future__ import annotations

from typing import Protocol

from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.cluster.metadata_image import ImageUnreadable, MetadataImage, read_image


class ImageView(Protocol):
    """A component that holds an image."""

    image: MetadataImage

    def set_image(self, image: MetadataImage) -> None: ...


class ImageFollower:
    """`is_stale`: there may be a newer image than the view's."""

    def __init__(self, layout: BoxLayout, view: ImageView, log: Logger) -> None:
        self._path = layout.image_file
        self._view = view
        self._log = log
        self.is_stale = True

    def on_changed(self, _generation: int) -> None:
        """The controller has published an image."""
        self.is_stale = True

    def load(self) -> MetadataImage | None:
        """Read the image; return it if it is a new one."""
        self.is_stale = False
        try:
            image = read_image(self._path, self._view.image)
        except ImageUnreadable as error:
            self._log.error(f"could not read the metadata image: {error}; continuing with the last one")
            return None
        if image is None or image.generation == self._view.image.generation:
            return None
        self._view.set_image(image)
        return image
