"""The public names of Likeness, each stated once: `likeness/__init__.py` imports them lazily."""

from . import backbones as backbones
from . import data as data
from . import frontends as frontends
from . import losses as losses
from . import metrics as metrics
from . import recipe as recipe
from .benchmark import bench as bench
from .checking.check import check as check
from .checking.lists import items as items
from .eval.errors import LikenessError as LikenessError
from .eval.formats.embeddings import Embeddings as Embeddings
from .eval.formats.embeddings import read_embeddings as read_embeddings
from .eval.formats.subjects import read_durations as read_durations
from .eval.formats.subjects import read_mapping as read_mapping
from .eval.formats.trials import read_trials as read_trials
from .eval.items.items import Item as Item
from .eval.metrics.calibration import Fusion as Fusion
from .eval.metrics.calibration import load_fusion as load_fusion
from .eval.metrics.clustering import Clusters as Clusters
from .eval.metrics.clustering import cluster as cluster
from .eval.metrics.system import VerificationSettings as VerificationSettings
from .eval.protocols.identification import IdentificationSettings as IdentificationSettings
from .eval.protocols.identification import identify as identify
from .eval.protocols.retrieval import RetrievalSettings as RetrievalSettings
from .eval.protocols.retrieval import retrieve as retrieve
from .eval.protocols.verification import Evaluation as Evaluation
from .eval.protocols.verification import evaluate as evaluate
from .eval.scoring.plda import load_plda as load_plda
from .eval.scoring.score import Scored as Scored
from .eval.scoring.score import calibrate as calibrate
from .eval.scoring.score import score as score
from .eval.scoring.settings import Scoring as Scoring
from .eval.types import Scores as Scores
from .eval.types import Trials as Trials
from .models.join import join as join
from .models.model import Model as Model
from .models.model import load as load
from .models.network import Network as Network
from .models.verdicts import Verification as Verification
from .toolkit.gallery.gallery import open_gallery as open_gallery
from .training.train import train as train

__version__: str
