"""Where the properties of object stores have other names."""

from __future__ import annotations

from collections.abc import Mapping

_PYICEBERG = {
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_REGION": "s3.region",
    "AWS_ENDPOINT_URL": "s3.endpoint",
}


def for_pyiceberg(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of S3 by pyiceberg's names, from those of its own tools and deltalake."""
    return {_PYICEBERG[name]: value for name, value in properties.items() if name in _PYICEBERG}
