"""What recipes are written with: `from likeness.recipe import Optim, Recipe, Sampling, Schedule`.

A recipe is a value of `Recipe`. A recipe file names its recipes in `RECIPES`; docs/how-to/ and the
files in recipes/ show how. What stands last here is for files that train and measure on their own.
"""

from likeness.errors import one_sentence as one_sentence
from likeness.eval.writing import write_json as write_json
from likeness.toolkit.console import argument_parser as argument_parser
from likeness.toolkit.console import say as say
from likeness.toolkit.data.sampling import Sampling as Sampling
from likeness.toolkit.models.parts import Part as Part
from likeness.toolkit.parallel.metric import Metric as Metric
from likeness.toolkit.parallel.metric import retrieval_metric as retrieval_metric
from likeness.toolkit.parallel.metric import verification_metric as verification_metric
from likeness.toolkit.training.fine_tuning import LoRA as LoRA
from likeness.toolkit.training.fine_tuning import Tuning as Tuning
from likeness.toolkit.training.measure import load_model as load_model
from likeness.toolkit.training.measure import measure_items as measure_items
from likeness.toolkit.training.memory import Memory as Memory
from likeness.toolkit.training.plan import plan as plan
from likeness.toolkit.training.recipe import Classification as Classification
from likeness.toolkit.training.recipe import Compute as Compute
from likeness.toolkit.training.recipe import Optim as Optim
from likeness.toolkit.training.recipe import Parallel as Parallel
from likeness.toolkit.training.recipe import Recipe as Recipe
from likeness.toolkit.training.recipe import Retrieval as Retrieval
from likeness.toolkit.training.recipe import Schedule as Schedule
from likeness.toolkit.training.recipe import Verification as Verification
from likeness.toolkit.training.recipe import override as override
from likeness.toolkit.training.schedules import constant as constant
from likeness.toolkit.training.schedules import cosine as cosine
from likeness.toolkit.training.schedules import exponential as exponential
from likeness.toolkit.training.schedules import multistep as multistep
from likeness.toolkit.training.schedules import polynomial as polynomial
from likeness.toolkit.training.search import Choice as Choice
from likeness.toolkit.training.search import Range as Range
from likeness.toolkit.training.search import Search as Search
from likeness.toolkit.training.train import Step as Step
from likeness.toolkit.training.train import fit as fit
from likeness.toolkit.training.train import step as step
