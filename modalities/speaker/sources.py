"""The data sets of speech that `likeness prepare` knows.

The checksums are those of torchaudio (LibriSpeech), TensorFlow Datasets (FSDD), WeSpeaker's
download_data.sh (MUSAN, RIRS_NOISES, CN-Celeb, VoxCeleb's audio) and PaddleSpeech's
dataset/voxceleb/voxceleb1.py (trial lists). Where nobody has published a checksum there is none,
and the output of the command says so.
"""

from __future__ import annotations

from modalities.speaker import cnceleb, voxceleb
from toolkit.data.source import Archive, Dataset, Holds

_SLR = "https://www.openslr.org/resources/"
_META = "https://www.robots.ox.ac.uk/~vgg/data/voxceleb/meta/"
_VOXCELEB = "https://www.robots.ox.ac.uk/~vgg/data/voxceleb/"

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
        note="docs/reference/results.md was measured on 54 of its speakers; with all of them the "
        "folds differ. The archive is NVIDIA's mirror of CMU's.",
    ),
    Dataset(
        name="fsdd",
        about="Free Spoken Digit Dataset 1.0.9: 5 speakers, 2,500 recordings, 12 MB",
        licence="CC BY-SA 4.0",
        page="https://github.com/Jakobovski/free-spoken-digit-dataset",
        archives=(
            Archive(
                makes="fsdd/recordings",
                urls=(
                    "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.9.tar.gz",
                ),
                takes=("*/recordings/*.wav",),
                size=11_975_353,
                sha256="8bc44cde129d505cbbb6b365c09f80c663f2aa77578afc634e6141a2f87100c0",
            ),
        ),
        holds=(Holds("fsdd/recordings", (".wav",), 2_500),),
        note="the sixth speaker, george, was added later; take his recordings from the repository.",
    ),
    Dataset(
        name="speechocean",
        about="speechocean762: 250 speakers of Mandarin who read English, half of them children, "
        "about 520 MB",
        licence="free for any use",
        page="https://www.openslr.org/101/",
        archives=(
            Archive(
                makes="speechocean762",
                urls=(_SLR + "101/speechocean762.tar.gz",),
                takes=("speechocean762/*",),
            ),
        ),
        holds=(Holds("speechocean762/WAVE", (".wav",), 5_000),),
        note="docs/reference/results.md was measured on 149 of its speakers, six recordings each.",
    ),
    Dataset(
        name="musan",
        about="MUSAN: noise, music and speech for augmentation, 11 GB "
        "(augment.corrupt.musan=DATA/musan)",
        licence="CC BY 4.0",
        page="https://www.openslr.org/17/",
        archives=(
            Archive(
                makes="musan",
                urls=(_SLR + "17/musan.tar.gz",),
                takes=("musan/*",),
                md5="0c472d4fc0c5141eca47ad1ffeb2a7df",
            ),
        ),
        holds=(Holds("musan", (".wav",), 2_016),),
    ),
    Dataset(
        name="rirs_noises",
        about="room impulse responses and noises, 1.3 GB "
        "(augment.corrupt.rirs=DATA/RIRS_NOISES/simulated_rirs, as WeSpeaker takes it)",
        licence="Apache 2.0",
        page="https://www.openslr.org/28/",
        archives=(
            Archive(
                makes="RIRS_NOISES",
                urls=(_SLR + "28/rirs_noises.zip",),
                takes=("RIRS_NOISES/*",),
                md5="e6f48e257286e05de56413b4779d8ffb",
            ),
        ),
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
            Archive(
                makes="CN-Celeb_flac",
                urls=(_SLR + "82/cn-celeb_v2.tar.gz",),
                takes=("CN-Celeb_flac/*",),
                md5="7ab1b214028a7439e26608b2d5a0336c",
            ),
            Archive(
                makes="CN-Celeb2_flac",
                urls=tuple(f"{_SLR}82/cn-celeb2_v2.tar.gza{part}" for part in "abc"),
                files=tuple(f"cn-celeb2_v2.tar.gza{part}" for part in "abc"),
                takes=("CN-Celeb2_flac/*",),
                md5="55c47cf0b6d0bf793e88bf79d5dfc660",
            ),
        ),
        check=cnceleb.check,
    ),
    Dataset(
        name="voxceleb1",
        about="VoxCeleb1: 1,251 celebrities, 153,516 utterances, 36 GB, and the trial lists",
        licence="lists and metadata CC BY 4.0; the audio is given on request",
        page=_VOXCELEB,
        archives=(
            Archive(
                makes="vox1/meta/veri_test.txt",
                urls=(_META + "veri_test.txt",),
                md5="29fc7cc1c5d59f0816dc15d6e8be60f7",
            ),
            Archive(
                makes="vox1/meta/veri_test2.txt",
                urls=(_META + "veri_test2.txt",),
                md5="b73110731c9223c1461fe49cb48dddfc",
            ),
            Archive(
                makes="vox1/meta/list_test_all.txt",
                urls=(_META + "list_test_all.txt",),
                md5="b9ecf7aa49d4b656aa927a8092844e4a",
            ),
            Archive(
                makes="vox1/meta/list_test_all2.txt",
                urls=(_META + "list_test_all2.txt",),
                md5="a53e059deb562ffcfc092bf5d90d9f3a",
            ),
            Archive(
                makes="vox1/meta/list_test_hard.txt",
                urls=(_META + "list_test_hard.txt",),
                md5="21c341b6b2168eea2634df0fb4b8fff1",
            ),
            Archive(
                makes="vox1/meta/list_test_hard2.txt",
                urls=(_META + "list_test_hard2.txt",),
                md5="857790e09d579a68eb2e339a090343c8",
            ),
            Archive(
                makes="vox1/meta/vox1_meta.csv",
                urls=(_SLR + "49/vox1_meta.csv",),
                md5="f5067cae5157ca27904c4b0a926e2661",
            ),
            Archive(
                makes="vox1/dev",
                files=tuple(f"vox1_dev_wav_parta{part}" for part in "abcd"),
                joined="vox1_dev_wav.zip",
                md5="ae63e55b951748cc486645f532ba230b",
            ),
            Archive(
                makes="vox1/test",
                files=("vox1_test_wav.zip",),
                md5="185fdc63c3c739954633d50379a3d102",
            ),
        ),
        check=voxceleb.check1,
        by_hand=(
            f"ask for access at {_VOXCELEB} (by its form; "
            "https://mm.kaist.ac.kr/datasets/voxceleb/ is its mirror), fetch vox1_dev_wav_partaa "
            "to partad and vox1_test_wav.zip into DATA/downloads, and run this command again: it "
            "verifies and unpacks them. Audio that you have already may lie anywhere below DATA, "
            "as .../id10001/VIDEO/00001.wav"
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
            Archive(
                makes="vox2/test",
                files=("vox2_test_aac.zip",),
                takes=("test/*", "aac"),
                md5="0d2b3ea430a821c33263b5ea37ede312",
            ),
        ),
        check=voxceleb.check2,
        by_hand=(
            f"ask for access at {_VOXCELEB}vox2.html (by its form), fetch vox2_dev_aac_partaa to "
            "partah and vox2_test_aac.zip into DATA/downloads, and run this command again: it "
            "verifies and unpacks them. Files of m4a are read as they are (pip install "
            "'likeness[m4a]'). Audio that you have already may lie anywhere below DATA, as "
            ".../dev/.../id00012/VIDEO/00001.m4a (or .wav)"
        ),
    ),
)
