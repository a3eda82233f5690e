"""The ledger of the papers' numbers, and its checker."""

from collections import Counter
from copy import deepcopy
from decimal import Decimal

import pytest
import torch

from fedlearn import claims

LEDGER = claims.load()
ENTRIES = {
    "rpn": 54,
    "fed_kgf": 132,
    "fed_mmd_fusion": 50,
    "fed_gkt": 102,
    "fed_repopt": 134,
}


def test_entries_have_their_keys_and_read_claims_of_their_own_paper():
    required = {"id", "paper", "where", "printed", "value", "formula", "verdict", "why"}
    claimed = {c["id"]: c["paper"] for c in LEDGER if "reading_of" not in c}
    assert len({c["id"] for c in LEDGER}) == len(LEDGER)
    for claim in LEDGER:
        assert required <= claim.keys() <= required | {"read", "reading_of", "data"}
        assert claim["id"].startswith(claim["paper"] + "-")
        assert claim["verdict"] in claims.VERDICTS
        assert claimed[claim.get("reading_of", claim["id"])] == claim["paper"]
        if claim["value"] not in (None, True):  # digits are text, as printed
            text = f"{claim['printed']} {claim.get('read', '')}".replace(",", "")
            assert format(Decimal(claim["value"]), "f") in text, claim["id"]


def test_every_entry_is_what_its_recomputation_says():
    before = torch.get_rng_state()
    results = claims.audit()
    assert torch.equal(torch.get_rng_state(), before), (
        "what is drawn has a seed of its own"
    )
    assert Counter(r.claim["paper"] for r in results) == ENTRIES
    assert not [r.problem for r in results if r.problem]
    for r in results:
        reading = "reading_of" in r.claim
        assert (r.verdict == "rejected") <= reading
        assert not (reading and r.verdict[:2] == "in")
    computed = claims.table("fed_mmd_fusion")["computed"]
    assert computed["fed_mmd_fusion-mmd-mnist-reduction"] == "43.75"


@pytest.mark.parametrize(
    "name, change",
    [
        ("rpn-table1-fl-params", {"verdict": "rounding"}),
        ("rpn-table1-reduction", {"formula": "params(no_such_network())"}),
        (
            "fed_repopt-rule-position",
            {"formula": "repopt_gap('digits_repvgg', 'diagonal') < 1e-9"},
        ),
    ],
)
def test_a_corrupted_entry_is_reported(name, change):
    [claim] = [deepcopy(c) | change for c in LEDGER if c["id"] == name]
    assert "LEDGER WRONG" in claims.report(claims.audit(claims=[claim]))


@pytest.mark.parametrize(
    "value, computed, verdict",
    [
        ("1.4", 1.3868, "rounding"),
        ("1.40", 1.3868, "inconsistent"),
        ("44", 44.99, "rounding"),  # cut
        ("-44", -44.99, "rounding"),  # towards zero
        ("-44", -43.2, "inconsistent"),
        ("39", (38.7, 39.74, 40.8), "rounding"),
        (True, True, "matches"),
        (None, 3, "not derivable"),
        ("3", None, "not derivable"),
    ],
)
def test_verdicts(value, computed, verdict):
    assert claims.verdict_of(value, computed) == verdict
