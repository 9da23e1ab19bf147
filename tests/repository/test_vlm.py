"""The vision-language example's data, and who is told to own what."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import digits_data  # noqa: E402  the scripts' folder has to be on the path first
import vlm_common  # noqa: E402
from digits_data import Pages  # noqa: E402

from hyper_pp import BatchOrder  # noqa: E402


def test_the_digits_are_scikit_learns_file_and_its_source_is_told():
    found = hashlib.sha256(digits_data.FILE.read_bytes()).hexdigest()
    told = (digits_data.FILE.parent / "README.md").read_text()
    assert found == "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
    assert found in told and "CC BY 4.0" in told and "BSD 3-Clause" in told
    images, digits = digits_data.read_digits()
    assert images.shape == (1797, 8, 8) and images.dtype == np.uint8 and images.max() == 16
    assert digits[:10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert images[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_a_page_has_no_or_several_images_and_a_text_that_names_them():
    pages = Pages(3, seed=1)
    assert [pages.num_images(page) for page in range(8)] == [0, 2, 2, 0, 2, 2, 0, 1]
    assert [pages.text(page) for page in range(3)] == ["nothing\n", "nine four\n", "one two\n"]
    images, ids = pages.inputs(1)
    targets = pages.targets(1)
    assert images.shape == (3, 8, 8) and images[:2].any(axis=(1, 2)).all() and not images[2].any()
    assert ids.tolist() == [1, 1, 2, *b"nine four\n"] + [0] * 8
    assert targets.tolist() == [-1, -1, *b"nine four\n"] + [-1] * 9
    with pytest.raises(ValueError, match=r"max_images must be at least 1 \(got 0\)"):
        Pages(0, seed=1)


def test_no_image_is_on_two_pages_and_held_out_ones_are_others():
    shown = [
        pages.inputs(page)[0][image].tobytes()
        for pages in (Pages(3, seed=1), Pages(3, seed=1, held_out=True))
        for page in range(len(pages))
        for image in range(pages.num_images(page))
    ]
    assert len(shown) == len(set(shown)) > 1700


def test_pages_that_are_wrong_in_one_byte_are_wrong():
    targets = np.array([[-1, 97, 98, -1], [-1, -1, 99, 10]])
    logits = np.zeros((2, 4, 256), np.float32)
    logits[0, 1, 97] = logits[0, 2, 98] = logits[1, 2, 99] = 1
    assert digits_data.written_right(logits, targets) == 1
    logits[1, 3, 10] = 1
    assert digits_data.written_right(logits, targets) == 2


def test_owners_share_the_patches_evenly_though_the_first_micro_batches_have_most():
    args = vlm_common.add_pipeline_options(vlm_common.make_parser("")).parse_args([])
    pages = Pages(args.max_images, args.seed)
    order = BatchOrder(**vlm_common.data_options(args, pages))
    patches = order.micro_batch_costs(lambda page: pages.num_images(page) * 16)
    options = vlm_common.transpose_options(args, pages, vlm_common.make_config(args, pages), 2)
    assert options["owners"] == (0, 1, 1, 0, 0, 1, 1, 0)
    loads = [sum(cost for m, cost in enumerate(patches) if options["owners"][m] == rank) for rank in (0, 1)]
    assert max(loads) < 1.05 * min(loads)
    assert patches == sorted(patches, reverse=True) and patches[0] > 20 * patches[-1]
