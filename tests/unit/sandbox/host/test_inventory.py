from slicewise.cluster.language.gpus.layouts import geometry
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.cluster.language.gpus.placement_text import read_placements
from slicewise.sandbox.host.inventory import NODES, accounting_tres, billing_weights, gpu_types


def test_every_node_is_cut_as_its_board_allows():
    for node in NODES:
        on = board(node.gpu)
        occupancy: int | None = 0
        for placement in read_placements(node.instances, on):
            occupancy = geometry(on).after(occupancy or 0, placement)
            assert occupancy is not None
        assert set(node.slices) <= set(gpu_types()[node.gpu])


def test_slices_are_counted_by_profile():
    assert NODES[1].slices == {"1g.10gb": 3, "3g.40gb": 1}


def test_billing_counts_millislices():
    assert billing_weights() == (
        "CPU=0,Mem=0,GRES/gpu:1g.10gb=1000,GRES/gpu:2g.20gb=2000,GRES/gpu:3g.40gb=3500,"
        "GRES/gpu:4g.40gb=4000,GRES/gpu:7g.80gb=7000,"
        "GRES/gpu:1g.18gb=1000,GRES/gpu:2g.35gb=2000,GRES/gpu:3g.71gb=3500,"
        "GRES/gpu:4g.71gb=4000,GRES/gpu:7g.141gb=7000"
    )


def test_accounting_tracks_every_type():
    tracked = accounting_tres().split(",")
    assert tracked[0] == "gres/gpu"
    assert tracked[1:] == [f"gres/gpu:{kind}" for kinds in gpu_types().values() for kind in kinds]
