"""Records sandbox.cfg and allocations.json from a real ColdFront, in a database of its own.

python -m venv /tmp/coldfront && /tmp/coldfront/bin/pip install coldfront==1.1.10
/tmp/coldfront/bin/python tests/assets/coldfront/record.py
"""

import json
import os
import tempfile
from pathlib import Path

PLACE = Path(__file__).parent
ALLOCATIONS = (
    (
        "physics",
        "Active",
        {"slurm_specs": ("GrpTRES=gres/gpu=4:Fairshare=100", "GrpTRESMins=gres/gpu=60000")},
    ),
    (
        "optics",
        "Active",
        {
            "slurm_parent": ("physics",),
            "slurm_specs": ("GrpTRES=gres/gpu=3,cpu=64",),
            "slicewise_quota": (
                'nominal = 6, borrowing_limit = "unlimited", limits = { "3g.40gb" = 2 }',
            ),
        },
    ),
    ("lasers", "Active", {"slurm_parent": ("physics",), "slurm_specs": ("GrpTRES=gres/gpu=3",)}),
    ("old", "Expired", {"slurm_specs": ("GrpTRES=gres/gpu=8",)}),
    (
        "typed",
        "Active",
        {
            "slurm_specs": (
                "Fairshare=5:GrpTRES='gres/gpu:1g.10gb=3,gres/gpu:3g.40gb=2':QOS='+normal'",
            )
        },
    ),
)


def started(database: Path) -> None:
    """Begin an empty ColdFront with its plugins for Slurm and REST."""
    os.environ.update(
        PLUGIN_SLURM="True",
        PLUGIN_API="True",
        SECRET_KEY=os.urandom(16).hex(),
        DB_URL=f"sqlite:///{database}",
        DEBUG="True",
        DJANGO_SETTINGS_MODULE="coldfront.config.settings",
    )
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    for name in ("project_choices", "allocation_defaults", "resource_defaults"):
        call_command(f"add_default_{name}" if name == "project_choices" else f"add_{name}")


def filled() -> object:
    """Make the allocations; return a user who may see all of them."""
    from coldfront.core.allocation import models as allocation
    from coldfront.core.field_of_science.models import FieldOfScience
    from coldfront.core.project.models import Project, ProjectStatusChoice
    from coldfront.core.resource import models as resource
    from django.contrib.auth import get_user_model

    admin = get_user_model().objects.create_superuser("pi")
    project = Project.objects.create(
        title="Physics",
        pi=admin,
        status=ProjectStatusChoice.objects.get(name="Active"),
        field_of_science=FieldOfScience.objects.create(description="x", is_selectable=True),
    )
    cluster = resource.Resource.objects.create(
        name="sandbox", resource_type=resource.ResourceType.objects.get(name="Cluster")
    )
    kind = resource.ResourceAttributeType.objects.get(name="slurm_cluster")
    resource.ResourceAttribute.objects.create(
        resource=cluster, resource_attribute_type=kind, value="sandbox"
    )
    text = allocation.AttributeType.objects.get(name="Text")
    for account, status, said in ALLOCATIONS:
        made = allocation.Allocation.objects.create(
            project=project, status=allocation.AllocationStatusChoice.objects.get(name=status)
        )
        made.resources.add(cluster)
        for name, values in {"slurm_account_name": (account,), **said}.items():
            kind, _ = allocation.AllocationAttributeType.objects.get_or_create(
                name=name, defaults={"attribute_type": text}
            )
            for value in values:
                allocation.AllocationAttribute.objects.create(
                    allocation=made, allocation_attribute_type=kind, value=value
                )
    return admin


def recorded(admin: object) -> None:
    """Write what ColdFront says of them."""
    from django.core.management import call_command
    from rest_framework.test import APIClient

    with (PLACE / "sandbox.cfg").open("w") as file:
        call_command("slurm_dump", stdout=file)
    client = APIClient()
    client.force_authenticate(admin)
    answer = client.get(
        "/api/allocations/?allocation_attributes=true", HTTP_HOST="localhost", follow=True
    )
    (PLACE / "allocations.json").write_text(json.dumps(answer.json(), indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        started(Path(folder) / "coldfront.db")
        recorded(filled())
