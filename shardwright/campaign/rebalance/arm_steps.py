"""What both arms of a rebalance go through: begun with a bundle of its own, described, and asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from shardwright.campaign.bundle_contents import put_running
from shardwright.campaign.engine_steps import Say, api_key, prove_running
from shardwright.campaign.engines import runtime_of
from shardwright.campaign.evidence import Bundle, free_folder, open_bundle
from shardwright.campaign.probe_table import Mode
from shardwright.campaign.rebalance.arms import Arm, Campaign, Role, keep_campaign
from shardwright.campaign.records import StartRecord
from shardwright.campaign.request import Request
from shardwright.campaign.verify import Verified, secret_values, verified_in, verify
from shardwright.errors import UsageError
from shardwright.probes.wire import Endpoint


def begin_arm(role: Role, request: Request, record: StartRecord, sets: Sequence[str], mode: Mode) -> Arm:
    """An arm that nothing was asked of yet; its bundle has a name and no file."""
    deployment = request.deployment
    return Arm(
        role=role,
        record=record,
        partition=request.assessment.plan.partition,
        sets=tuple(sets),
        run=str(free_folder(request.project.root, deployment.name, role)),
        mode=mode,
        overlay=deployment.overlay.directory if deployment.overlay else None,
    )


def bundle_of(request: Request, arm: Arm) -> Bundle:
    """The evidence of an arm, to be written or taken up."""
    return open_bundle(Path(arm.run), secret_values(request.deployment.secrets))


def ask_arm(
    request: Request, environ: Mapping[str, str], campaign: Campaign, arm: Arm, *, control: Path | None, say: Say
) -> tuple[Arm, Verified]:
    """Prove and verify what runs as this arm, seal its bundle, and note that it was asked to the end.

    One that was killed after the seal is only noted. UsageError where it was noted already.
    """
    bundle = bundle_of(request, arm)
    if arm.verified:
        raise UsageError(f"the {arm.role} was asked already: {bundle.folder}", fix="deploy rebalance verdict")
    if bundle.sealed:
        verified = verified_in(bundle)
    else:
        runtime = runtime_of(request.deployment.runtime, request.project.root)
        put_running(bundle, request, arm.role, runtime, arm.record.instance)
        prove_running(request, bundle)
        endpoint = Endpoint(arm.record.base_url, api_key(arm.record, environ))
        verified = verify(
            bundle, endpoint, arm.record.model, request, arm.mode, control=control, fail_fast=False, say=say
        )
        bundle.seal()
    done = replace(arm, verified=True)
    keep_campaign(request.project.state_dir(), request.deployment.name, campaign.with_arm(done))
    return done, verified
