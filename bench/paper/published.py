"""The paper's own figures, read off its charts: MiB within 20 to 40, performance within 0.002.

Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network
Design", MICRO 2016. A network without a figure there has no entry.
"""

from __future__ import annotations

SIX = ("alexnet", "overfeat", "googlenet", "vgg16-64", "vgg16-128", "vgg16-256")
VERY_DEEP = ("vgg116", "vgg216", "vgg316", "vgg416")

OFFLOADED_MIB = {  # Figure 12
    "all": dict(zip(SIX, (359, 1158, 2348, 4027, 8071, 16125), strict=True)),
    "conv": dict(zip(SIX, (163, 391, 1370, 2543, 5071, 10141), strict=True)),
}

WORKSPACE_MIB = {  # the baseline's largest, Figure 4
    **dict(zip(SIX, (328, 1580, 405, 2447, 2736, 5010), strict=True)),
    "vgg216": 2312,
}

AVERAGE_MIB = {  # Figure 11
    "all(m)": dict(zip(SIX, (117, 389, 195, 584, 1089, 2101), strict=True)),
    "all(p)": dict(zip(SIX, (195, 467, 233, 973, 1634, 2996), strict=True)),
    "conv(m)": dict(zip(SIX, (233, 895, 1012, 1673, 3268, 6148), strict=True)),
    "conv(p)": dict(zip(SIX, (311, 973, 1012, 2062, 3852, 7198), strict=True)),
    "dyn": dict(zip(SIX, (389, 1128, 1907, 3696, 3852, 2763), strict=True)),
    "none(m)": dict(zip(SIX, (778, 2802, 4125, 6148, 12412, 22957), strict=True)),
    "none(p)": dict(zip(SIX, (1128, 4358, 4514, 8599, 14475, 27977), strict=True)),
}

MAXIMUM_MIB = {  # Figure 11; of none, the average is the maximum
    "all(m)": dict(zip(SIX, (272, 1284, 1012, 2451, 4864, 9611), strict=True)),
    "all(p)": dict(zip(SIX, (545, 2335, 1012, 2918, 4864, 14086), strict=True)),
    "conv(m)": dict(zip(SIX, (311, 1362, 1440, 2802, 5564, 10195), strict=True)),
    "conv(p)": dict(zip(SIX, (584, 2412, 1634, 4280, 6342, 17198), strict=True)),
    "dyn": dict(zip(SIX, (661, 2412, 2529, 6342, 6342, 9611), strict=True)),
    "none(m)": AVERAGE_MIB["none(m)"],
    "none(p)": AVERAGE_MIB["none(p)"],
}

PERFORMANCE = {  # Figure 14: of the baseline's with (p) convolutions, or the oracle's
    "all(m)": dict(zip(SIX, (0.361, 0.538, 0.469, 0.439, 0.394, 0.356), strict=True)),
    "all(p)": dict(zip(SIX, (0.775, 0.905, 0.629, 0.841, 0.841, 0.786), strict=True)),
    "conv(m)": dict(zip(SIX, (0.397, 0.563, 0.546, 0.474, 0.419, 0.370), strict=True)),
    "conv(p)": dict(zip(SIX, (0.954, 0.974, 0.786, 0.999, 0.999, 0.916), strict=True)),
    "dyn": dict(zip(SIX, (1.0, 1.0, 1.0, 1.0, 1.0, 0.817), strict=True)),
    "none(m)": dict(zip(SIX, (0.400, 0.568, 0.615, 0.469, 0.422, 0.383), strict=True)),
}

VERY_DEEP_MIB = {  # Figure 15: the baseline, then dyn's GPU and CPU parts
    "baseline": dict(zip(VERY_DEEP, (21027, 36409, 51750, 67132), strict=True)),
    "dyn, GPU": dict(zip(VERY_DEEP, (2986, 3395, 3845, 4255), strict=True)),
    "dyn, CPU": dict(zip(VERY_DEEP, (16977, 31950, 46841, 61814), strict=True)),
}
