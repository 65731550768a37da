"""Tests what the launcher is told of names of models, beside keys."""

from types import SimpleNamespace
from typing import Any

from builders.service_views import a_service
from builders.tenants import policy_of, tenant

from slicewise.cluster.settings.file import OidcSettings
from slicewise.slurm_plugin.api.guests import GuestLogins
from slicewise.slurm_plugin.api.keys import ServiceKeys


def test_the_launcher_is_told_what_models_mean_for_each_tenant(clock: object):
    policy = policy_of(tenant("vision"), tenant("nlp"))
    shared = a_service(tenant="vision", name="bert", directives={"audience": "nlp"})
    seen: Any = SimpleNamespace(
        quotas=SimpleNamespace(policy=policy), view=SimpleNamespace(services=(shared,))
    )
    unused: Any = None
    keys = ServiceKeys(
        *(unused, seen, unused, unused),
        guests=GuestLogins(unused, OidcSettings(), unused, unused),
        rates=unused,
        operators=frozenset(),
        aliases={"gpt": "vision/bert"},
    )
    names = ("bert", "gpt", "vision/bert")
    assert keys.grants().models == {
        "nlp": "nlp/",
        "vision,gpt": "vision/bert",
        **{f"nlp/,{name}": "vision/bert" for name in names},
    }
