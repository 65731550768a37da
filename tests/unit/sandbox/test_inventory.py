from cluster.mig_profiles import board
from sandbox.inventory import NODES, accounting_tres, billing_weights, gpu_types


def test_every_slice_exists_on_its_board_and_fits_it():
    for node in NODES:
        on = board(node.gpu)
        profiles = [(on.profiles[name], count) for name, count in node.slices.items()]
        assert sum(p.compute_slices * count for p, count in profiles) <= on.compute_slices
        assert sum(p.memory_slices * count for p, count in profiles) <= on.memory_slices


def test_gres_is_as_slurm_conf_takes_it():
    assert NODES[1].gres == "gpu:1g.10gb:3,gpu:3g.40gb:1"


def test_types_of_two_models():
    assert gpu_types() == {
        "A100-80GB": ("1g.10gb", "3g.40gb"),
        "H200-141GB": ("1g.18gb", "3g.71gb"),
    }


def test_billing_counts_millislices():
    assert billing_weights() == (
        "CPU=0,Mem=0,GRES/gpu:1g.10gb=1000,GRES/gpu:3g.40gb=3500,"
        "GRES/gpu:1g.18gb=1000,GRES/gpu:3g.71gb=3500"
    )


def test_accounting_tracks_every_type():
    assert accounting_tres() == (
        "gres/gpu,gres/gpu:1g.10gb,gres/gpu:3g.40gb,gres/gpu:1g.18gb,gres/gpu:3g.71gb"
    )
