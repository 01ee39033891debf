"""What turns items into the inputs of networks: `from likeness.frontends import KaldiFbank`.

Front-ends are torch modules. `KaldiFbank`, `SpeechBrainFbank`, `MelSpectrogram` and `MFCC` turn
waves into features, and `PixelScale` scales pixels. `INSIGHTFACE`, `IMAGENET` and the like are
`PixelScale` with the numbers of a project or a data set, and `RESEMBLYZER_MEL` is such a
`MelSpectrogram`. Views are functions that augment an item for training, such as `train_view` and
`FLIP_VIEW`, and `spec_augment` masks features. `statistics` pools features over time.
"""

from likeness.modalities.face.augment import ADAFACE_VIEW as ADAFACE_VIEW
from likeness.modalities.face.augment import FLIP_VIEW as FLIP_VIEW
from likeness.modalities.face.augment import geometric_view as geometric_view
from likeness.modalities.image.transforms import BENCHMARKER as BENCHMARKER
from likeness.modalities.image.transforms import REVISITING as REVISITING
from likeness.modalities.image.transforms import VMF_CARS as VMF_CARS
from likeness.modalities.image.transforms import VMF_CIFAR10 as VMF_CIFAR10
from likeness.modalities.image.transforms import VMF_CIFAR100 as VMF_CIFAR100
from likeness.modalities.image.transforms import VMF_CUB as VMF_CUB
from likeness.modalities.image.transforms import VMF_SOP as VMF_SOP
from likeness.modalities.image.transforms import crop_view as crop_view
from likeness.modalities.image.transforms import shift_view as shift_view
from likeness.modalities.image.transforms import warp_view as warp_view
from likeness.modalities.speaker.augment import WESPEAKER_VIEW as WESPEAKER_VIEW
from likeness.modalities.speaker.augment import train_view as train_view
from likeness.modalities.speaker.features import MFCC as MFCC
from likeness.modalities.speaker.features import THREED_SPEAKER_FBANK as THREED_SPEAKER_FBANK
from likeness.modalities.speaker.features import KaldiFbank as KaldiFbank
from likeness.modalities.speaker.features import UnitWave as UnitWave
from likeness.modalities.speaker.hub_speech import StackedFbank as StackedFbank
from likeness.modalities.speaker.mel_spectrogram import RESEMBLYZER_MEL as RESEMBLYZER_MEL
from likeness.modalities.speaker.mel_spectrogram import MelSpectrogram as MelSpectrogram
from likeness.modalities.speaker.noise import corrupt as corrupt
from likeness.modalities.speaker.spec_augment import spec_augment as spec_augment
from likeness.modalities.speaker.speechbrain_fbank import SpeechBrainFbank as SpeechBrainFbank
from likeness.toolkit.backbones.pooling import statistics as statistics
from likeness.toolkit.data.pixels import ADAFACE as ADAFACE
from likeness.toolkit.data.pixels import BN_INCEPTION as BN_INCEPTION
from likeness.toolkit.data.pixels import CIFAR10 as CIFAR10
from likeness.toolkit.data.pixels import CIFAR100 as CIFAR100
from likeness.toolkit.data.pixels import IMAGENET as IMAGENET
from likeness.toolkit.data.pixels import INSIGHTFACE as INSIGHTFACE
from likeness.toolkit.data.pixels import PixelScale as PixelScale
