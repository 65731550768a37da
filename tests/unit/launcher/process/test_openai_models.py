"""Tests the list of a tenant's models."""

import json
from types import SimpleNamespace
from typing import Any

from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.launcher.process.openai_models import OpenAIModels
from slicewise.launcher.rules.gateway.types import Terms
from slicewise.launcher.rules.turn.state import ServiceState


def turned(
    models: OpenAIModels, *known: str, adapters: frozenset[str] = frozenset(), **groups: str
) -> None:
    """A turn that decides for services of t, by name, and knows these as well."""
    plans = [
        SimpleNamespace(
            service=f"t/{name}",
            route=SimpleNamespace(
                group=group.removeprefix("-"),
                terms=Terms(closing=group.startswith("-")),
                adapters=adapters,
            ),
            submit_s=5,
        )
        for name, group in groups.items()
    ]
    plan: Any = SimpleNamespace(services=plans)
    models.turned(plan, {f"t/{name}": ServiceState() for name in (*known, *groups)})


def listed(models: OpenAIModels, scope: str = "t") -> list[str]:
    answer = models.answer(scope, "/v1/models")
    assert answer.status == 200
    return [one["id"] for one in json.loads(answer.body)["data"]]


def test_only_services_of_openai_s_api_are_models_and_none_that_is_to_end():
    models = OpenAIModels()
    turned(models, chat="llamacpp", bert="triton", old="-llamacpp")
    assert listed(models) == ["chat"]
    assert listed(models, "t/chat") == ["chat"]
    assert listed(models, "t/bert") == listed(models, "u") == listed(models, "t/cha") == []


def test_a_service_for_which_a_turn_decides_nothing_stays_and_a_deleted_one_goes():
    models = OpenAIModels()
    turned(models, a="llamacpp", b="llamacpp")
    turned(models, "a", b="llamacpp")
    assert listed(models) == ["a", "b"]
    turned(models, "b", a="-llamacpp")
    assert listed(models) == ["b"]
    turned(models)
    assert listed(models) == []


def test_before_the_first_turn_no_list_is_given_that_lacks_all():
    models = OpenAIModels()
    answer = models.answer("t", "/v1/models")
    assert answer.status == 503
    assert json.loads(answer.body)["error"]["type"] == "server_error"


def test_one_model_is_found_by_its_name_within_the_scope():
    models = OpenAIModels()
    turned(models, a="llamacpp", b="llamacpp")
    found = json.loads(models.answer("t", "/v1/models/a").body)
    assert found == {"id": "a", "object": "model", "created": 5, "owned_by": "t"}
    unknown = models.answer("t/b", "/v1/models/a")
    assert unknown.status == 404
    assert json.loads(unknown.body)["error"]["code"] == "SW-GATEWAY-UNKNOWN"


def test_adapters_are_models_of_their_own_names_with_their_service_as_parent():
    models = OpenAIModels()
    turned(models, adapters=frozenset({"tax", "legal"}), chat="vllm")
    assert listed(models) == listed(models, "t/chat") == ["chat", "chat:legal", "chat:tax"]
    for path in ("/v1/models/chat:legal", "/v1/models/chat%3Alegal"):
        found = json.loads(models.answer("t", path).body)
        assert (found["id"], found["parent"]) == ("chat:legal", "chat")
    assert models.answer("t", "/v1/models/chat:none").status == 404


def test_at_the_site_s_address_models_are_those_that_a_key_may_use_by_names_that_it_can_give():
    models = OpenAIModels()
    turned(models, adapters=frozenset({"tax"}), chat="vllm", big="vllm")
    shared = {"u": "u/", "u/,chat": "-", "u/,t/chat": "t/chat", "u/,gpt": "t/chat"}
    assert listed(models, "/u") == []
    models.told(shared)
    assert listed(models, "/u") == ["t/chat", "t/chat:tax", "gpt", "gpt:tax"]
    assert listed(models, "/u/t/chat") == listed(models, "/u")
    assert listed(models, "/u/t/big") == listed(models, "/v") == listed(models, "u") == []
    assert listed(models, "/t") == ["big", "big:tax", "chat", "chat:tax"]
    assert listed(models, "/t/big") == ["big", "big:tax"]
    for path in ("/v1/models/t/chat", "/v1/models/t%2Fchat"):
        assert json.loads(models.answer("/u", path).body)["owned_by"] == "t"
    assert models.answer("/v", "/v1/models/t/chat").status == 404


def test_what_the_limits_of_who_asks_refuse_is_no_model():
    models = OpenAIModels()
    turned(models, chat="vllm", big="vllm", code="vllm")
    only = {"person": ("t/chat", "t/big"), "key_id": ("t/big", "t/code")}
    limits = [
        SubjectLimits(tenant="t", limits=RequestLimits(models=only["person"]), person="anna"),
        SubjectLimits(tenant="t", limits=RequestLimits(models=only["key_id"]), key_id="k1"),
        SubjectLimits(tenant="t", limits=RequestLimits(concurrent=2)),
    ]
    models.told({}, limits)

    def names(*subjects: str) -> list[str]:
        answer = models.answer("t", "/v1/models", subjects)
        return [model["id"] for model in json.loads(answer.body)["data"]]

    assert names("t", "t/ben", "t//k2") == ["big", "chat", "code"]
    assert names("t", "t/anna", "t//k2") == ["big", "chat"]
    assert names("t", "t/anna", "t//k1") == ["big"]
    assert models.answer("t", "/v1/models/code", ("t/anna",)).status == 404
    models.told({}, ())
    assert names("t/anna") == ["big", "chat", "code"]
