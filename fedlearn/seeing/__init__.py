"""Detection and segmentation: tasks, networks, and data with boxes or masks."""

from .detection import DETECTORS, Detection, detection
from .scenes import digit_scenes
from .segmentation import SEGMENTERS, Segmentation, segmentation
from .targets import from_boxes, from_masks

TASKS = {"detection": detection, "segmentation": segmentation}
