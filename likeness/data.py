"""What data sets are read with: `from likeness.data import Item, an4, audio, folders`.

A data set is a module with a function `items(data, *, split)`, and often with `trials(...)`. The
modules `audio`, `faces` and `images` read an item. `folders` lists a folder that holds one folder
per subject.
"""

from likeness.eval.formats.trials import read_scores as read_scores
from likeness.eval.formats.trials import read_trials as read_trials
from likeness.eval.formats.trials import write_trials as write_trials
from likeness.eval.items.item_lists import write_items as write_items
from likeness.eval.items.items import Item as Item
from likeness.modalities import folders as folders
from likeness.modalities import synthetic as synthetic
from likeness.modalities import synthetic_faces as synthetic_faces
from likeness.modalities import synthetic_glyphs as synthetic_glyphs
from likeness.modalities.embedding import rows as rows
from likeness.modalities.face import images as _face_images
from likeness.modalities.face import orl as orl
from likeness.modalities.face import recordio as recordio
from likeness.modalities.face import validation as validation
from likeness.modalities.image import images as images
from likeness.modalities.image import small_sets as small_sets
from likeness.modalities.image.retrieval_sets import cars_items as cars_items
from likeness.modalities.image.retrieval_sets import cub_items as cub_items
from likeness.modalities.image.retrieval_sets import sop_items as sop_items
from likeness.modalities.speaker import an4 as an4
from likeness.modalities.speaker import audio as audio
from likeness.modalities.speaker import cnceleb as cnceleb
from likeness.modalities.speaker import speechocean as speechocean
from likeness.modalities.speaker import voxceleb as voxceleb
from likeness.toolkit.data import shards as shards

faces = _face_images
