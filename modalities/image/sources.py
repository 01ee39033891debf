"""The data sets of images that `likeness prepare` knows.

Checksums are those of torchvision's datasets/mnist.py and omniglot.py, of CIFAR's page, of
Zalando's README (FashionMNIST) and of pytorch-metric-learning's datasets/cub.py, cars196.py and
sop.py.
"""

from __future__ import annotations

from modalities.image import cars, cifar, cub, mnist, omniglot, sop
from toolkit.data.source import Archive, Dataset

_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_KRIZ = "https://www.cs.toronto.edu/~kriz/"
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"

DATASETS = (
    Dataset(
        name="mnist",
        about="MNIST: 70,000 handwritten digits of 28 x 28, 11 MB",
        licence="customarily CC BY-SA 3.0",
        page="https://yann.lecun.com/exdb/mnist/",
        archives=tuple(
            Archive(
                makes=f"mnist/{name}",
                urls=(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}",),
                md5=md5,
            )
            for name, md5 in zip(_IDX, _MNIST_MD5, strict=True)
        ),
        check=mnist.check,
        note="from PyTorch's mirror, as torchvision fetches it.",
    ),
    Dataset(
        name="fashion_mnist",
        about="FashionMNIST: 70,000 grey images of clothes, 28 x 28, 31 MB",
        licence="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        archives=tuple(
            Archive(makes=f"fashion_mnist/{name}", urls=(_ZALANDO + name,), md5=md5)
            for name, md5 in zip(_IDX, _FASHION_MD5, strict=True)
        ),
        check=mnist.check_fashion,
    ),
    Dataset(
        name="cifar10",
        about="CIFAR-10: 60,000 colour images of 32 x 32 in 10 classes, 170 MB",
        licence="none stated; its author offers it for research",
        page=_KRIZ + "cifar.html",
        archives=(
            Archive(
                makes="cifar-10-batches-bin",
                urls=(_KRIZ + "cifar-10-binary.tar.gz",),
                takes=("cifar-10-batches-bin/*",),
                md5=cifar.MD5["cifar-10-binary.tar.gz"],
            ),
        ),
        check=cifar.check10,
        note="the server was slow in 2026 (an hour; pytorch/vision issue 9536); what is broken off "
        "goes on.",
    ),
    Dataset(
        name="cifar100",
        about="CIFAR-100: 60,000 colour images of 32 x 32 in 100 classes, 169 MB",
        licence="none stated; its author offers it for research",
        page=_KRIZ + "cifar.html",
        archives=(
            Archive(
                makes="cifar-100-binary",
                urls=(_KRIZ + "cifar-100-binary.tar.gz",),
                takes=("cifar-100-binary/*",),
                md5=cifar.MD5["cifar-100-binary.tar.gz"],
            ),
        ),
        check=cifar.check100,
        note="the server was slow in 2026 (an hour; pytorch/vision issue 9536); what is broken off "
        "goes on.",
    ),
    Dataset(
        name="omniglot",
        about="Omniglot: 1,623 characters of 50 alphabets, 20 drawings each, 16 MB",
        licence="MIT",
        page="https://github.com/brendenlake/omniglot",
        archives=tuple(
            Archive(
                makes=f"omniglot/{part}",
                urls=(f"{_OMNIGLOT}{part}.zip",),
                takes=(f"{part}/*",),
                md5=md5,
            )
            for part, md5 in (
                ("images_background", "68d2efa1b9178cc56df9314c21c6e718"),
                ("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811"),
            )
        ),
        check=omniglot.check,
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
        check=cub.check,
    ),
    Dataset(
        name="cars196",
        about="Cars196: 16,185 photographs of 196 models of cars, 1.9 GB",
        licence="non-commercial research",
        page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        archives=(
            Archive(
                makes="car_ims",
                files=("car_ims.tgz",),
                takes=("car_ims/*",),
                md5="d5c8f0aa497503f355e17dc7886c3f14",
            ),
            Archive(
                makes="cars_annos.mat",
                files=("cars_annos.mat",),
                md5="b407c6086d669747186bd1d764ff9dbc",
            ),
        ),
        check=cars.check,
        by_hand=(
            "its site is gone: fetch car_ims.tgz and cars_annos.mat from a mirror into "
            "DATA/downloads and run this command again: it verifies and unpacks them."
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
        check=sop.check,
    ),
)
