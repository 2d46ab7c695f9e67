"""Tetrahedral semiconductors: zinc blende, wurtzite, their polytypes and ordered derivatives; cuprite, silica."""

from __future__ import annotations

from data_gen.materials.prototypes import Prototype, Row

LB17 = "Landolt-Börnstein III/17"
LB22 = "Landolt-Börnstein III/22"
W1 = "Wyckoff, Crystal Structures vol. 1"
SHAY = "Shay and Wernick, Ternary Chalcopyrite Semiconductors (1975)"
KISI = "Kisi and Elcombe, Acta Cryst. C45 (1989) 1867"
SILICA = "Levien, Prewitt and Weidner, Am. Mineral. 65 (1980) 920"
DOLLASE = "Dollase, Z. Kristallogr. 121 (1965) 369"
SMITH = "Smith and Isaacs, Acta Cryst. 17 (1964) 842"
NG = "Ng and Calvo, Can. J. Phys. 54 (1976) 638"

PROTOTYPES = {
    "zincblende": Prototype(216, "cubic", "A 0 0 0; B 1/4 1/4 1/4"),
    "wurtzite": Prototype(186, "hexagonal", "A 1/3 2/3 0; B 1/3 2/3 u"),
    "4H": Prototype(186, "hexagonal", "A 0 0 0; A 1/3 2/3 1/4; B 0 0 3/16; B 1/3 2/3 7/16"),
    "6H": Prototype(
        186, "hexagonal", "A 0 0 0; A 1/3 2/3 1/6; A 2/3 1/3 1/3; B 0 0 1/8; B 1/3 2/3 7/24; B 2/3 1/3 11/24"
    ),
    "chalcopyrite": Prototype(122, "tetragonal", "A 0 0 0; B 0 0 1/2; C x 1/4 1/8"),
    "cuprite": Prototype(224, "cubic", "B 0 0 0; A 1/4 1/4 1/4"),
    "quartz": Prototype(152, "hexagonal", "A x1 0 1/3; B x2 y2 z2"),
    "berlinite": Prototype(152, "hexagonal", "A x1 0 1/3; B x2 0 5/6; C x3 y3 z3; C x4 y4 z4"),
    "cristobalite": Prototype(92, "tetragonal", "A x1 x1 0; B x2 y2 z2"),
    "beta-silicon-nitride": Prototype(176, "hexagonal", "A x1 y1 1/4; B x2 y2 1/4; B 1/3 2/3 1/4"),
}

ROWS = (
    Row("zincblende", "BN", (3.6157,), LB17),
    Row("zincblende", "BP", (4.5380,), LB17),
    Row("zincblende", "AlP", (5.4635,), LB17),
    Row("zincblende", "AlAs", (5.6611,), LB17),
    Row("zincblende", "AlSb", (6.1355,), LB17),
    Row("zincblende", "GaP", (5.4505,), LB17),
    Row("zincblende", "GaAs", (5.6533,), LB17),
    Row("zincblende", "GaSb", (6.0959,), LB17),
    Row("zincblende", "InP", (5.8687,), LB17),
    Row("zincblende", "InAs", (6.0583,), LB17),
    Row("zincblende", "InSb", (6.4794,), LB17),
    Row("zincblende", "SiC", (4.3596,), LB17),
    Row("zincblende", "ZnS", (5.4093,), LB17),
    Row("zincblende", "ZnSe", (5.6680,), LB17),
    Row("zincblende", "ZnTe", (6.1026,), LB17),
    Row("zincblende", "CdTe", (6.4810,), LB17),
    Row("zincblende", "HgTe", (6.4600,), LB17),
    Row("zincblende", "BeS", (4.8624,), W1),
    Row("zincblende", "CuCl", (5.4160,), W1),
    Row("zincblende", "CuI", (6.0510,), W1),
    Row("wurtzite", "AlN", (3.1114, 4.9792), LB17, (0.3821,)),
    Row("wurtzite", "GaN", (3.1890, 5.1850), LB17, (0.3770,)),
    Row("wurtzite", "InN", (3.5378, 5.7033), LB22, (0.3790,)),
    Row("wurtzite", "ZnO", (3.2498, 5.2066), KISI, (0.3821,)),
    Row("wurtzite", "ZnS", (3.8227, 6.2607), KISI, (0.3748,)),
    Row("wurtzite", "CdS", (4.1365, 6.7160), LB17, (0.3770,)),
    Row("wurtzite", "CdSe", (4.2999, 7.0109), LB17, (0.3767,)),
    Row("wurtzite", "BeO", (2.6979, 4.3772), W1, (0.3786,)),
    Row("wurtzite", "AgI", (4.5922, 7.5104), W1, (0.3750,)),
    Row("4H", "SiC", (3.0730, 10.0530), LB17),
    Row("6H", "SiC", (3.0806, 15.1173), LB17),
    Row("chalcopyrite", "CuFeS2", (5.2890, 10.4230), "Hall and Stewart, Acta Cryst. B29 (1973) 579", (0.2574,)),
    Row("chalcopyrite", "CuInSe2", (5.7820, 11.6190), "Knight, Mater. Res. Bull. 27 (1992) 161", (0.2260,)),
    Row("chalcopyrite", "CuInS2", (5.5230, 11.1410), SHAY, (0.2295,)),
    Row("chalcopyrite", "CuGaS2", (5.3510, 10.4840), SHAY, (0.2539,)),
    Row("chalcopyrite", "AgGaS2", (5.7572, 10.3036), SHAY, (0.2908,)),
    Row("chalcopyrite", "ZnGeP2", (5.4650, 10.7110), SHAY, (0.2582,)),
    Row("chalcopyrite", "ZnSiP2", (5.3990, 10.4350), SHAY, (0.2691,)),
    Row("cuprite", "Cu2O", (4.2696,), W1),
    Row("cuprite", "Ag2O", (4.7180,), W1),
    Row("quartz", "SiO2", (4.9160, 5.4054), SILICA, (0.4697, 0.4135, 0.2669, 0.2142)),
    Row("quartz", "GeO2", (4.9870, 5.6520), SMITH, (0.4513, 0.3975, 0.3021, 0.2423)),
    Row("berlinite", "AlPO4", (4.9423, 10.9446), NG,
        (0.4664, 0.4669, 0.4163, 0.2922, 0.3976, 0.4156, 0.2576, 0.8837)),
    Row("cristobalite", "SiO2", (4.9780, 6.9480), DOLLASE, (0.3003, 0.2392, 0.1044, 0.1787)),
    Row("beta-silicon-nitride", "Si3N4", (7.6080, 2.9110), "Grün, Acta Cryst. B35 (1979) 800",
        (0.1740, 0.7660, 0.3290, 0.0310)),
)  # fmt: skip
