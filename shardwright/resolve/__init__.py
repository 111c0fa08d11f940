"""Layout + facts + patch metadata to one frozen `Deployment`: defaults by named rule, origins kept."""
