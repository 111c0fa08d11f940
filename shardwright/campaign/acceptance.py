"""Verify a server that runs already, ours or a remote one, into a bundle of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardwright import __version__
from shardwright.campaign.bundle_contents import put_request, put_running
from shardwright.campaign.engine_steps import Say, api_key
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.evidence import MANIFEST, SCHEMA, Bundle, create_bundle, open_bundle
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.records import StartRecord
from shardwright.campaign.request import Request
from shardwright.campaign.verify import Verified, secret_values, verify
from shardwright.errors import UsageError
from shardwright.probes.wire import Endpoint

ARM = "verify"


def accept(
    root: Path,
    layout: str,
    base_url: str,
    model: str | None,
    api_key: str | None,
    request: Request | None,
    mode: Mode,
    *,
    control: Path | None = None,
    output: Path | None = None,
    say: Say = lambda _: None,
) -> tuple[Verified, Path]:
    """Ask the server and seal what came of it. `output` names a bundle to take up, or a new folder for it."""
    secrets = secret_values(request.deployment.secrets if request else ())
    hidden = (*secrets, api_key) if api_key else secrets
    bundle = _bundle(root, layout, output, hidden)
    if request is not None:
        put_request(bundle, request, ARM)
    elif bundle.read(MANIFEST) is None:
        bundle.put(
            MANIFEST,
            {"schema": SCHEMA, "tool_version": __version__, "layout": layout, "arm": ARM, "base_url": base_url},
        )
    verified = verify(bundle, Endpoint(base_url, api_key), model, request, mode, control=control, say=say)
    bundle.seal()
    return verified, bundle.folder


def accept_running(
    request: Request, record: StartRecord, environ: Mapping[str, str], mode: Mode, *, arm: str, say: Say
) -> tuple[Verified, Path]:
    """Verify the running instance of a record into a new sealed bundle of this arm."""
    deployment = request.deployment
    hidden = secret_values(deployment.secrets)
    bundle = create_bundle(request.project.root, deployment.name, arm, hidden)
    put_running(bundle, request, arm, runtime_of(deployment.runtime, request.project.root), record.instance)
    endpoint = Endpoint(record.base_url, api_key(record, environ))
    verified = verify(bundle, endpoint, record.model, request, mode, say=say)
    bundle.seal()
    return verified, bundle.folder


def _bundle(root: Path, layout: str, output: Path | None, secrets: tuple[str, ...]) -> Bundle:
    if output is None:
        return create_bundle(root, layout, ARM, secrets)
    bundle = open_bundle(output, secrets)
    if bundle.sealed:
        raise UsageError(f"{output} is a finished run", fix="name another folder with --output")
    output.mkdir(parents=True, exist_ok=True)
    return bundle
