"""Detached signatures of saved models: who made a folder, where its checksums only say that it is whole.

    new_key(Path("me.pem"))                     # and me.pem.pub, which others get
    sign("model-int8", Path("me.pem"))          # model-int8/octune.json.sig
    verify("model-int8", Path("me.pem.pub"))    # ArtifactError, unless it is that folder

Ed25519 over the bytes of ``octune.json``, whose digests cover every other file; keys are PEM files. So other
tools can make keys and look at signatures as well (openssl does, for example).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from octune.artifact import MANIFEST, manifest
from octune.errors import ArtifactError, ConfigError, MissingDependency
from octune.folders import write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["SIGNATURE", "new_key", "sign", "verify"]

SIGNATURE = f"{MANIFEST}.sig"


def new_key(file: Path) -> Path:
    """Make a key that only this user can read, and beside it the public one, whose path is returned."""
    _needs_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    beside = file.with_name(f"{file.name}.pub")
    try:
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as opened:
            opened.write(private)
        write_whole(beside, public)
    except FileExistsError as error:
        raise ConfigError(f"{file} exists, and a key is not replaced. Choose another name.") from error
    except OSError as error:
        raise ConfigError(f"The key cannot be written to {file}: {error}. Choose another place.") from error
    return beside


def sign(folder: str | Path, key: Path) -> Path:
    """Sign a folder that is whole; returns the file of the signature. An earlier signature is replaced."""
    folder, private = Path(folder), _private(key)
    data = _signed(folder)
    try:
        write_whole(folder / SIGNATURE, private.sign(data))
    except OSError as error:
        raise ArtifactError(f"The signature cannot be written to {folder}: {error}.") from error
    return folder / SIGNATURE


def verify(folder: str | Path, key: Path) -> None:
    """Check that a folder is whole, and that the owner of that public key has signed it; ArtifactError
    otherwise.
    """
    folder, public = Path(folder), _public(key)
    from cryptography.exceptions import InvalidSignature

    data = _signed(folder)
    try:
        signature = (folder / SIGNATURE).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{folder} has no signature that can be read ({error}).") from error
    try:
        public.verify(signature, data)
    except InvalidSignature as error:
        raise ArtifactError(
            f"{folder / SIGNATURE} is not a signature of this folder by the owner of {key}: the folder was "
            "changed after it was signed, or somebody else has signed it."
        ) from error


def _signed(folder: Path) -> bytes:
    """What is signed of a folder, after checking that it is all there is: a file that the manifest does not
    name would be one that nobody has signed.
    """
    data = manifest(folder)
    content = _read(folder / MANIFEST)
    named = {*data["files"], MANIFEST, SIGNATURE}
    for path in sorted(folder.rglob("*")):
        if not path.is_dir() and (name := path.relative_to(folder).as_posix()) not in named:
            raise ArtifactError(
                f"{path} is not a file of the saved model: {MANIFEST} does not name it ({name}). Remove it."
            )
    if _read(folder / MANIFEST) != content:
        raise ArtifactError(f"{folder / MANIFEST} was changed while it was read. Try again.")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # manifest() says what is wrong with it


def _private(file: Path) -> Ed25519PrivateKey:
    _needs_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_key(file), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{file} is not a private key as 'octune sign --new-key' makes it ({error})."
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} is not an Ed25519 key. 'octune sign --new-key {file.name}' makes one.")
    return key


def _public(file: Path) -> Ed25519PublicKey:
    _needs_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_key(file))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{file} is not a public key ({error}). Expected the .pub file of a key."
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{file} is not an Ed25519 key. Expected the .pub file of a key.")
    return key


def _key(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"The key {file} cannot be read: {error}.") from error


def _needs_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise MissingDependency("cryptography", "sign", "A signature") from error
