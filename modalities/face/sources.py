"""The data sets of faces that `likeness prepare` knows, and a face detector.

The checksums are those of scikit-learn's datasets/_lfw.py. Nobody has published one for ORL, and
the output of the command says so. The detector's checksum and size are those of the Git LFS pointer
in opencv/opencv_zoo, models/face_detection_yunet.
"""

from __future__ import annotations

from toolkit.data.source import Archive, Dataset, Holds

_ZOO = "https://media.githubusercontent.com/media/opencv/opencv_zoo/main/models/"
_FIGSHARE = "https://ndownloader.figshare.com/files/"

DATASETS = (
    Dataset(
        name="lfw",
        about="Labeled Faces in the Wild: 13,233 photographs of 5,749 people, and the 6,000 pairs, "
        "0.2 GB",
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
        holds=(
            Holds("lfw-original/images", (".jpg",), 13_233),
            Holds("lfw-original", ("pairs.txt",), 1),
        ),
        note="these are scikit-learn's copy of the original images, so the faces are not aligned. "
        "Networks for aligned faces need modalities.face.align first.",
    ),
    Dataset(
        name="orl",
        about="ORL (AT&T) faces: 40 subjects, 10 grey images each, 4 MB",
        licence="free, with credit to Olivetti Research Laboratory, Cambridge",
        page="https://cam-orl.co.uk/facedatabase.html",
        archives=(
            Archive(
                makes="orl",
                urls=("https://www.cl.cam.ac.uk/Research/DTG/attarchive/pub/data/att_faces.zip",),
                takes=("s*", "att_faces/s*"),
            ),
        ),
        holds=(Holds("orl", (".pgm",), 400),),
        by_hand="if its server does not answer, fetch att_faces.zip from elsewhere and unpack it "
        "so that DATA/orl/s1/1.pgm, ..., s40/10.pgm are there",
    ),
    Dataset(
        name="yunet",
        about="YuNet: OpenCV's face detector for --detector, one file of 0.2 MB",
        licence="MIT",
        page="https://github.com/opencv/opencv_zoo/tree/main/models/face_detection_yunet",
        archives=(
            Archive(
                makes="yunet/face_detection_yunet_2023mar.onnx",
                urls=(_ZOO + "face_detection_yunet/face_detection_yunet_2023mar.onnx",),
                sha256="8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4",
                size=232_589,
            ),
        ),
        holds=(Holds("yunet", (".onnx",), 1),),
        note="a detector, and no data set: give the file to --detector, or to detector= in Python.",
    ),
)
