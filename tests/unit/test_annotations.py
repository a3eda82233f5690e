"""Pictures with boxes or masks as data of one's own."""

import numpy as np
import pytest

from fedlearn import DataError
from fedlearn.data.annotations import NOTHING, VOID, from_boxes, from_masks

PLAIN = np.zeros((3, 8, 10), np.uint8)
BOXES = [[1, 2, 5, 6, 0, 0], [0, 0, 10, 8, 1, 1]]
MASK = np.ones((8, 10), int)


def test_boxes_are_padded_and_the_largest_class_is_the_main_one():
    source = from_boxes(PLAIN, [BOXES, [], BOXES[:1]], 2, (PLAIN[:1], [BOXES]), empty=True)
    assert source.train_y.shape == (3, 2, 6) and source.train_y[0, 1].tolist() == BOXES[1]
    assert (source.train_y[1, :, 4] == NOTHING).all() and source.train_y[2, 1, 4] == NOTHING
    assert source.labels.tolist() == [1, 2, 0] and source.counts.tolist() == [2, 0, 1]
    both = [[0, 0, 2, 6, 0], [1, 1, 4, 6, 1]]  # 12 pixels and 15
    source = from_boxes(np.ones((4, 3, 6, 8), np.float32), [both] * 4, 2, 0.5)
    assert source.labels.tolist() == [1, 1]
    masks = [MASK, MASK * 0 + VOID, MASK * 2]
    source = from_masks(PLAIN, masks, 3, (PLAIN[:1], [MASK]), empty=True)
    assert source.labels.tolist() == [0, 3, 1] and source.counts.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="3 images"):
        from_boxes(PLAIN, [BOXES, BOXES], 2)


@pytest.mark.parametrize(
    "bad, says",
    [
        ([], "no object"),
        ([[1, 2, 1, 6, 0]], "1.0, 2.0, 1.0, 6.0, 0.0, 0.0.*inside 10 x 8 pixels"),
        ([[1, 2, 5, 6, 2]], "class from 0 to 1"),
        (MASK.T, r"\[10, 8\]"),
        (MASK * 2, "2 to 2: .* to 1, or 255"),
    ],
)
def test_pictures_that_cannot_be_learned_from(bad, says):
    make, good = (from_boxes, BOXES[:1]) if isinstance(bad, list) else (from_masks, MASK)
    with pytest.raises(DataError, match=rf"^Image 2 \(c.png\) has .*{says}"):
        make(PLAIN, [good, good, bad], 2, 0.4, files=["a.png", "b.png", "c.png"])
