"""One function per hazard: `(Deployment, Plan, Facts) -> list[Finding]`; no I/O."""
