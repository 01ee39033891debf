"""The data sets that `likeness prepare` knows, one value each: what to fetch, from where, and what there should be afterwards.

Checksums are those of torchaudio (LibriSpeech), TensorFlow Datasets (FSDD), WeSpeaker's download_data.sh (MUSAN, RIRS_NOISES, CN-Celeb, VoxCeleb's audio),
PaddleSpeech's dataset/voxceleb/voxceleb1.py (trial lists), torchvision's datasets/mnist.py, cifar.py, omniglot.py (MNIST, CIFAR, Omniglot), Zalando's README
(FashionMNIST), pytorch-metric-learning's datasets/cub.py, cars196.py, sop.py, and scikit-learn's datasets/_lfw.py (LFW). Where nobody's is known there is none,
and the output says so.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import NamedTuple


class Count(NamedTuple):
    """How many of what are there, and how many there should be."""

    what: str
    found: int
    expected: int


@dataclass(frozen=True)
class Archive:
    """One archive (in one file or in parts), or a single file, and where it goes.

    makes: the folder or file below DATA; where it exists, nothing is done. takes: patterns inside an archive whose matches make up that folder; () = all.
    urls: its parts in order; () = it cannot be fetched, and `files`, or the one file `joined`, are looked for in DATA/downloads and DATA.
    size: bytes, 0 = unknown. sha256, md5: of the joined parts, "" = unknown.
    """

    makes: str
    urls: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    joined: str = ""
    takes: tuple[str, ...] = ()
    size: int = 0
    sha256: str = ""
    md5: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """File names of the parts."""
        return self.files or tuple(url.rpartition("/")[2] for url in self.urls)


@dataclass(frozen=True)
class Holds:
    """`files` files with one of these suffixes below a folder of DATA."""

    folder: str
    suffixes: tuple[str, ...]
    files: int


@dataclass(frozen=True)
class Dataset:
    """One data set. check: name of a modality's function (data) -> list[Count], which may raise what reading the data raises; by_hand: what to do about what
    cannot be fetched."""

    name: str
    about: str
    licence: str
    page: str
    archives: tuple[Archive, ...]
    holds: tuple[Holds, ...] = ()
    check: str = ""
    by_hand: str = ""
    note: str = ""


_SLR = "https://www.openslr.org/resources/"
_META = "https://www.robots.ox.ac.uk/~vgg/data/voxceleb/meta/"
_VOXCELEB = "https://www.robots.ox.ac.uk/~vgg/data/voxceleb/"
_IDX = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
_MNIST_MD5 = ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432", "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c")
_FASHION_MD5 = ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe", "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310")
_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_KRIZ = "https://www.cs.toronto.edu/~kriz/"
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
_FIGSHARE = "https://ndownloader.figshare.com/files/"

DATASETS = (
    Dataset(
        name="an4",
        about="CMU AN4, spelt letters and numbers, about 64 MB",
        licence="free for any purpose",
        page="http://www.speech.cs.cmu.edu/databases/an4/",
        archives=(
            Archive(
                makes="an4/wav",
                urls=("https://dldata-public.s3.us-east-2.amazonaws.com/an4_sphere.tar.gz",),
                takes=("an4/wav/an4_clstk/*", "an4/wav/an4test_clstk/*"),
                sha256="a0525579493735d32b60fb6fa5975dd0eaacde087b0a4eeb7f13b7ef33077b12",
            ),
        ),
        holds=(Holds("an4/wav", (".sph",), 1_078),),
        note="docs/results.md was measured on 54 of its speakers: with all of them the folds are others. NVIDIA's mirror of CMU's archive.",
    ),
    Dataset(
        name="fsdd",
        about="Free Spoken Digit Dataset 1.0.9: 5 speakers, 2,500 recordings, 12 MB",
        licence="CC BY-SA 4.0",
        page="https://github.com/Jakobovski/free-spoken-digit-dataset",
        archives=(
            Archive(
                makes="fsdd/recordings",
                urls=("https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.9.tar.gz",),
                takes=("*/recordings/*.wav",),
                size=11_975_353,
                sha256="8bc44cde129d505cbbb6b365c09f80c663f2aa77578afc634e6141a2f87100c0",
            ),
        ),
        holds=(Holds("fsdd/recordings", (".wav",), 2_500),),
        note="the sixth speaker, george, came later: take his recordings from the repository.",
    ),
    Dataset(
        name="musan",
        about="MUSAN: noise, music and speech for augmentation, 11 GB (augment.corrupt.musan=DATA/musan)",
        licence="CC BY 4.0",
        page="https://www.openslr.org/17/",
        archives=(Archive(makes="musan", urls=(_SLR + "17/musan.tar.gz",), takes=("musan/*",), md5="0c472d4fc0c5141eca47ad1ffeb2a7df"),),
        holds=(Holds("musan", (".wav",), 2_016),),
    ),
    Dataset(
        name="rirs_noises",
        about="room impulse responses and noises, 1.3 GB (augment.corrupt.rirs=DATA/RIRS_NOISES/simulated_rirs, as WeSpeaker takes it)",
        licence="Apache 2.0",
        page="https://www.openslr.org/28/",
        archives=(Archive(makes="RIRS_NOISES", urls=(_SLR + "28/rirs_noises.zip",), takes=("RIRS_NOISES/*",), md5="e6f48e257286e05de56413b4779d8ffb"),),
        holds=(Holds("RIRS_NOISES/simulated_rirs", (".wav",), 60_000),),
    ),
    Dataset(
        name="librispeech",
        about="LibriSpeech train-clean-100: 251 readers, 28,539 utterances, 6.3 GB",
        licence="CC BY 4.0",
        page="https://www.openslr.org/12/",
        archives=(
            Archive(
                makes="librispeech/flac",
                urls=(_SLR + "12/train-clean-100.tar.gz",),
                takes=("LibriSpeech/train-clean-100/*",),
                sha256="d4ddd1d5a6ab303066f14971d768ee43278a5f2a0aa43dc716b0e64ecbbbf6e2",
            ),
        ),
        holds=(Holds("librispeech/flac", (".flac",), 28_539),),
    ),
    Dataset(
        name="cnceleb",
        about="CN-Celeb 1 and 2: Chinese celebrities in eleven genres, over 50 GB",
        licence="see its page; its authors offer it for research",
        page="https://www.openslr.org/82/",
        archives=(
            Archive(makes="CN-Celeb_flac", urls=(_SLR + "82/cn-celeb_v2.tar.gz",), takes=("CN-Celeb_flac/*",), md5="7ab1b214028a7439e26608b2d5a0336c"),
            Archive(
                makes="CN-Celeb2_flac",
                urls=tuple(f"{_SLR}82/cn-celeb2_v2.tar.gza{part}" for part in "abc"),
                files=tuple(f"cn-celeb2_v2.tar.gza{part}" for part in "abc"),
                takes=("CN-Celeb2_flac/*",),
                md5="55c47cf0b6d0bf793e88bf79d5dfc660",
            ),
        ),
        check="modalities.speaker.cnceleb.check",
    ),
    Dataset(
        name="voxceleb1",
        about="VoxCeleb1: 1,251 celebrities, 153,516 utterances, 36 GB, and the trial lists",
        licence="lists and metadata CC BY 4.0; the audio is given on request",
        page=_VOXCELEB,
        archives=(
            Archive(makes="vox1/meta/veri_test.txt", urls=(_META + "veri_test.txt",), md5="29fc7cc1c5d59f0816dc15d6e8be60f7"),
            Archive(makes="vox1/meta/veri_test2.txt", urls=(_META + "veri_test2.txt",), md5="b73110731c9223c1461fe49cb48dddfc"),
            Archive(makes="vox1/meta/list_test_all.txt", urls=(_META + "list_test_all.txt",), md5="b9ecf7aa49d4b656aa927a8092844e4a"),
            Archive(makes="vox1/meta/list_test_all2.txt", urls=(_META + "list_test_all2.txt",), md5="a53e059deb562ffcfc092bf5d90d9f3a"),
            Archive(makes="vox1/meta/list_test_hard.txt", urls=(_META + "list_test_hard.txt",), md5="21c341b6b2168eea2634df0fb4b8fff1"),
            Archive(makes="vox1/meta/list_test_hard2.txt", urls=(_META + "list_test_hard2.txt",), md5="857790e09d579a68eb2e339a090343c8"),
            Archive(makes="vox1/meta/vox1_meta.csv", urls=(_SLR + "49/vox1_meta.csv",), md5="f5067cae5157ca27904c4b0a926e2661"),
            Archive(
                makes="vox1/dev", files=tuple(f"vox1_dev_wav_parta{part}" for part in "abcd"), joined="vox1_dev_wav.zip", md5="ae63e55b951748cc486645f532ba230b"
            ),
            Archive(makes="vox1/test", files=("vox1_test_wav.zip",), md5="185fdc63c3c739954633d50379a3d102"),
        ),
        check="modalities.speaker.voxceleb.check1",
        by_hand=(
            f"ask for access at {_VOXCELEB} (its form; https://mm.kaist.ac.kr/datasets/voxceleb/ is its mirror), fetch vox1_dev_wav_partaa to partad and"
            " vox1_test_wav.zip into DATA/downloads and run this command again: it verifies and unpacks them. Audio that you have may lie anywhere below DATA"
            " as .../id10001/VIDEO/00001.wav"
        ),
    ),
    Dataset(
        name="voxceleb2",
        about="VoxCeleb2: 6,112 celebrities, 1,128,246 utterances as m4a, 75 GB",
        licence="the audio is given on request",
        page=_VOXCELEB + "vox2.html",
        archives=(
            Archive(makes="vox2/meta/vox2_meta.csv", urls=(_META + "vox2_meta.csv",)),
            Archive(
                makes="vox2/dev",
                files=tuple(f"vox2_dev_aac_parta{part}" for part in "abcdefgh"),
                joined="vox2_aac.zip",
                takes=("dev/*", "aac"),
                md5="bbc063c46078a602ca71605645c2a402",
            ),
            Archive(makes="vox2/test", files=("vox2_test_aac.zip",), takes=("test/*", "aac"), md5="0d2b3ea430a821c33263b5ea37ede312"),
        ),
        check="modalities.speaker.voxceleb.check2",
        by_hand=(
            f"ask for access at {_VOXCELEB}vox2.html (its form), fetch vox2_dev_aac_partaa to partah and vox2_test_aac.zip into DATA/downloads and run this"
            " command again: it verifies and unpacks them. m4a is read as it is (pip install 'likeness[m4a]'). Audio that you have may lie anywhere below"
            " DATA as .../dev/.../id00012/VIDEO/00001.m4a (or .wav)"
        ),
    ),
    Dataset(
        name="mnist",
        about="MNIST: 70,000 handwritten digits of 28 x 28, 11 MB",
        licence="customarily CC BY-SA 3.0",
        page="https://yann.lecun.com/exdb/mnist/",
        archives=tuple(
            Archive(makes=f"mnist/{name}", urls=(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}",), md5=md5)
            for name, md5 in zip(_IDX, _MNIST_MD5, strict=True)
        ),
        check="modalities.image.mnist.check",
        note="from PyTorch's mirror, as torchvision fetches it.",
    ),
    Dataset(
        name="fashion_mnist",
        about="FashionMNIST: 70,000 grey images of clothes, 28 x 28, 31 MB",
        licence="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        archives=tuple(Archive(makes=f"fashion_mnist/{name}", urls=(_ZALANDO + name,), md5=md5) for name, md5 in zip(_IDX, _FASHION_MD5, strict=True)),
        check="modalities.image.mnist.check_fashion",
    ),
    Dataset(
        name="cifar10",
        about="CIFAR-10: 60,000 colour images of 32 x 32 in 10 classes, 170 MB",
        licence="none stated; its author offers it for research",
        page=_KRIZ + "cifar.html",
        archives=(
            Archive(
                makes="cifar-10-batches-py",
                urls=(_KRIZ + "cifar-10-python.tar.gz",),
                takes=("cifar-10-batches-py/*",),
                md5="c58f30108f718f92721af3b95e74349a",
            ),
        ),
        check="modalities.image.cifar.check10",
        note="the server was slow in 2026 (an hour; pytorch/vision issue 9536); what is broken off goes on.",
    ),
    Dataset(
        name="cifar100",
        about="CIFAR-100: 60,000 colour images of 32 x 32 in 100 classes, 169 MB",
        licence="none stated; its author offers it for research",
        page=_KRIZ + "cifar.html",
        archives=(
            Archive(makes="cifar-100-python", urls=(_KRIZ + "cifar-100-python.tar.gz",), takes=("cifar-100-python/*",), md5="eb9058c3a382ffc7106e4002c42a8d85"),
        ),
        check="modalities.image.cifar.check100",
        note="the server was slow in 2026 (an hour; pytorch/vision issue 9536); what is broken off goes on.",
    ),
    Dataset(
        name="omniglot",
        about="Omniglot: 1,623 characters of 50 alphabets, 20 drawings each, 16 MB",
        licence="MIT",
        page="https://github.com/brendenlake/omniglot",
        archives=tuple(
            Archive(makes=f"omniglot/{part}", urls=(f"{_OMNIGLOT}{part}.zip",), takes=(f"{part}/*",), md5=md5)
            for part, md5 in (
                ("images_background", "68d2efa1b9178cc56df9314c21c6e718"),
                ("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811"),
            )
        ),
        check="modalities.image.omniglot.check",
    ),
    Dataset(
        name="cub200",
        about="CUB-200-2011: 11,788 photographs of 200 bird species, 1.1 GB",
        licence="non-commercial research and education",
        page="https://data.caltech.edu/records/65de6-vp158",
        archives=(
            Archive(
                makes="CUB_200_2011",
                urls=("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",),
                takes=("CUB_200_2011/*",),
                md5="97eceeb196236b17998738112f37df78",
            ),
        ),
        check="modalities.image.cub.check",
    ),
    Dataset(
        name="cars196",
        about="Cars196: 16,185 photographs of 196 models of cars, 1.9 GB",
        licence="non-commercial research",
        page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        archives=(
            Archive(makes="car_ims", files=("car_ims.tgz",), takes=("car_ims/*",), md5="d5c8f0aa497503f355e17dc7886c3f14"),
            Archive(makes="cars_annos.mat", files=("cars_annos.mat",), md5="b407c6086d669747186bd1d764ff9dbc"),
        ),
        check="modalities.image.cars.check",
        by_hand=(
            "its site is gone: fetch car_ims.tgz and cars_annos.mat from a mirror into DATA/downloads and run this command again: it verifies and unpacks them."
            " Its later layout, cars_train/, cars_test/ and devkit/ in DATA, is counted as it is"
        ),
    ),
    Dataset(
        name="sop",
        about="Stanford Online Products: 120,053 photographs of 22,634 products, 2.9 GB",
        licence="see its page; its authors offer it for research",
        page="https://cvgl.stanford.edu/projects/lifted_struct/",
        archives=(
            Archive(
                makes="Stanford_Online_Products",
                urls=("http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",),
                takes=("Stanford_Online_Products/*",),
                md5="7f73d41a2f44250d4779881525aea32e",
            ),
        ),
        check="modalities.image.sop.check",
    ),
    Dataset(
        name="lfw",
        about="Labeled Faces in the Wild: 13,233 photographs of 5,749 people, and the 6,000 pairs, 0.2 GB",
        licence="see its page; for research",
        page="https://vis-www.cs.umass.edu/lfw/",
        archives=(
            Archive(
                makes="lfw-original/images",
                urls=(_FIGSHARE + "5976018",),
                files=("lfw.tgz",),
                takes=("lfw/*",),
                sha256="055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0",
            ),
            Archive(
                makes="lfw-original/pairs.txt",
                urls=(_FIGSHARE + "5976006",),
                files=("pairs.txt",),
                sha256="ea42330c62c92989f9d7c03237ed5d591365e89b3e649747777b70e692dc1592",
            ),
        ),
        holds=(Holds("lfw-original/images", (".jpg",), 13_233), Holds("lfw-original", ("pairs.txt",), 1)),
        note="scikit-learn's copy of the original images: faces are not aligned. Networks for aligned faces need modalities.face.align first.",
    ),
    Dataset(
        name="orl",
        about="ORL (AT&T) faces: 40 subjects, 10 grey images each, 4 MB",
        licence="free, with credit to Olivetti Research Laboratory, Cambridge",
        page="https://cam-orl.co.uk/facedatabase.html",
        archives=(Archive(makes="orl", urls=("https://www.cl.cam.ac.uk/Research/DTG/attarchive/pub/data/att_faces.zip",), takes=("s*", "att_faces/s*")),),
        holds=(Holds("orl", (".pgm",), 400),),
        by_hand="if its server does not answer, fetch att_faces.zip from elsewhere and unpack it so that DATA/orl/s1/1.pgm, ..., s40/10.pgm are there",
    ),
)


def table() -> str:
    """The data sets that there are, a line each."""
    width = max(len(one.name) for one in DATASETS)
    return "\n".join(f"{one.name:{width}}  {'by hand ' if one.by_hand else 'download'}  {one.about}" for one in DATASETS)


def named(name: str) -> Dataset:
    """The data set of this name. ValueError names the nearest and all."""
    for one in DATASETS:
        if one.name == name.lower():
            return one
    near = difflib.get_close_matches(name.lower(), [one.name for one in DATASETS], n=1)
    meant = f"; did you mean {near[0]!r}" if near else ""
    raise ValueError(f"there is no data set {name!r} to prepare{meant}; there are {', '.join(one.name for one in DATASETS)}")
