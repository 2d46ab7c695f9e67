"""Minerals: carbonates, silicates, sulfides, sulfates, phosphates; down to monoclinic and triclinic ones."""

from __future__ import annotations

from data_gen.materials.prototypes import Prototype, Row

EFFENBERGER = "Effenberger, Mereiter and Zemann, Z. Kristallogr. 156 (1981) 233"
REEDER = "Reeder, Am. Mineral. 68 (1983) 1183"
DEVILLIERS = "De Villiers, Am. Mineral. 56 (1971) 758"
CAMERON = "Cameron et al., Am. Mineral. 58 (1973) 594"
FUJINO = "Fujino et al., Acta Cryst. B37 (1981) 513"
WINTER = "Winter and Ghose, Am. Mineral. 64 (1979) 573"
AUVRAY = "Auvray and Genet, Bull. Soc. fr. Minér. Crist. 96 (1973) 218"
HARLOW = "Harlow and Brown, Am. Mineral. 65 (1980) 986"
OHASHI = "Ohashi, Phys. Chem. Miner. 10 (1984) 217"
JACOBSEN = "Jacobsen et al., Can. Mineral. 36 (1998) 1053"
HAZEN = "Hazen, Finger and Mariathasan, J. Phys. Chem. Solids 46 (1985) 253"
ROBINSON = "Robinson, Gibbs and Ribbe, Am. Mineral. 56 (1971) 782"
STRELTSOV = "Streltsov et al., Acta Cryst. B49 (1993) 147"
OLSEN = "Brostigen and Kjekshus, Acta Chem. Scand. 23 (1969) 2186; 24 (1970) 1925"
SCAVNICAR = "Ščavničar, Z. Kristallogr. 114 (1960) 85"

PROTOTYPES = {
    "calcite": Prototype(167, "hexagonal", "A 0 0 0; B 0 0 1/4; C x 0 1/4"),
    "dolomite": Prototype(148, "hexagonal", "A 0 0 0; B 0 0 1/2; C 0 0 z1; D x2 y2 z2"),
    "aragonite": Prototype(62, "orthorhombic", "A x1 1/4 z1; B x2 1/4 z2; C x3 1/4 z3; C x4 y4 z4"),
    "pyrite": Prototype(205, "cubic", "A 0 0 0; B u u u"),
    "marcasite": Prototype(58, "orthorhombic", "A 0 0 0; B x y 0"),
    "cinnabar": Prototype(152, "hexagonal", "A x1 0 1/3; B x2 0 5/6"),
    "stibnite": Prototype(62, "orthorhombic", "A x1 1/4 z1; A x2 1/4 z2; B x3 1/4 z3; B x4 1/4 z4; B x5 1/4 z5"),
    "olivine": Prototype(62, "orthorhombic", "A 0 0 0; B x1 1/4 z1; C x2 1/4 z2; D x3 1/4 z3; D x4 1/4 z4; D x5 y5 z5"),
    "zircon": Prototype(141, "tetragonal", "A 0 3/4 1/8; B 0 1/4 3/8; C 0 y z", setting=2),
    "scheelite": Prototype(88, "tetragonal", "A 0 1/4 5/8; B 0 1/4 1/8; C x y z", setting=2),
    "barite": Prototype(62, "orthorhombic", "A x1 1/4 z1; B x2 1/4 z2; C x3 1/4 z3; C x4 1/4 z4; C x5 y5 z5"),
    "pyroxene": Prototype(15, "monoclinic", "A 0 y1 1/4; B 0 y2 1/4; C x3 y3 z3; D x4 y4 z4; D x5 y5 z5; D x6 y6 z6"),
    "kyanite": Prototype(
        2,
        "triclinic",
        "A a1 b1 c1; A a2 b2 c2; A a3 b3 c3; A a4 b4 c4; B d1 e1 f1; B d2 e2 f2; C u1 v1 w1; C u2 v2 w2; C u3 v3 w3;"
        "C u4 v4 w4; C u5 v5 w5; C u6 v6 w6; C u7 v7 w7; C u8 v8 w8; C u9 v9 w9; C x1 y1 z1",
    ),
    "wollastonite": Prototype(
        2,
        "triclinic",
        "A a1 b1 c1; A a2 b2 c2; A a3 b3 c3; B d1 e1 f1; B d2 e2 f2; B d3 e3 f3; C u1 v1 w1; C u2 v2 w2; C u3 v3 w3;"
        "C u4 v4 w4; C u5 v5 w5; C u6 v6 w6; C u7 v7 w7; C u8 v8 w8; C u9 v9 w9",
    ),
    "albite": Prototype(
        2,
        "triclinic",
        "A a1 b1 c1; B d1 e1 f1; C d2 e2 f2; C d3 e3 f3; C d4 e4 f4; D u1 v1 w1; D u2 v2 w2; D u3 v3 w3;"
        "D u4 v4 w4; D u5 v5 w5; D u6 v6 w6; D u7 v7 w7; D u8 v8 w8",
        centring=((0.5, 0.5, 0.0),),
    ),
}

ROWS = (
    Row("calcite", "CaCO3", (4.9896, 17.0610), EFFENBERGER, (0.2568,)),
    Row("calcite", "MgCO3", (4.6328, 15.0129), EFFENBERGER, (0.2778,)),
    Row("calcite", "FeCO3", (4.6916, 15.3796), EFFENBERGER, (0.2743,)),
    Row("calcite", "MnCO3", (4.7682, 15.6354), EFFENBERGER, (0.2695,)),
    Row("calcite", "NaNO3", (5.0700, 16.8200), "Paul and Pryor, Acta Cryst. B27 (1971) 2700", (0.2450,)),
    Row("dolomite", "CaMgC2O6", (4.8069, 16.0034), REEDER, (0.2429, 0.2478, -0.0353, 0.2440)),
    Row("aragonite", "CaCO3", (5.7404, 4.9614, 7.9671), DEVILLIERS,
        (0.7597, 0.4150, 0.9138, 0.7622, 0.9038, 0.9225, 0.9128, 0.4736, 0.6810)),
    Row("pyrite", "FeS2", (5.4160,), OLSEN, (0.3848,)),
    Row("pyrite", "CoS2", (5.5385,), OLSEN, (0.3899,)),
    Row("pyrite", "NiS2", (5.6865,), OLSEN, (0.3945,)),
    Row("pyrite", "MnS2", (6.1014,), OLSEN, (0.4012,)),
    Row("pyrite", "PtAs2", (5.9665,), OLSEN, (0.3830,)),
    Row("marcasite", "FeS2", (4.4431, 5.4245, 3.3871), OLSEN, (0.2001, 0.3782)),
    Row("cinnabar", "HgS", (4.1450, 9.4960), AUVRAY, (0.7198, 0.4889)),
    Row("stibnite", "Sb2S3", (11.3300, 3.8300, 11.2500), SCAVNICAR,
        (0.0300, 0.3260, 0.8510, 0.9640, 0.0540, 0.8790, 0.8700, 0.5600, 0.2130, 0.1900)),
    Row("olivine", "Mg2SiO4", (10.1943, 5.9807, 4.7535), FUJINO,
        (0.2774, 0.9915, 0.0940, 0.4262, 0.0913, 0.7657, 0.4474, 0.2215, 0.1628, 0.0331, 0.2777), "Mg Mg Si O"),
    Row("olivine", "Fe2SiO4", (10.4788, 6.0873, 4.8195), FUJINO,
        (0.2803, 0.9860, 0.0975, 0.4300, 0.0922, 0.7687, 0.4529, 0.2076, 0.1656, 0.0384, 0.2884), "Fe Fe Si O"),
    Row("olivine", "LiFePO4", (10.3320, 6.0100, 4.6920), STRELTSOV,
        (0.2822, 0.9747, 0.0948, 0.4182, 0.0967, 0.7428, 0.4571, 0.2060, 0.1656, 0.0465, 0.2848)),
    Row("zircon", "ZrSiO4", (6.6070, 5.9820), ROBINSON, (0.0661, 0.1953)),
    Row("zircon", "YVO4", (7.1183, 6.2893), "Chakoumakos, Abraham and Boatner, J. Solid State Chem. 109 (1994) 197",
        (0.0655, 0.2018)),
    Row("scheelite", "CaWO4", (5.2429, 11.3737), HAZEN, (0.1507, 0.0086, 0.2106)),
    Row("scheelite", "CaMoO4", (5.2220, 11.4250), HAZEN, (0.1457, 0.0082, 0.2068)),
    Row("barite", "BaSO4", (8.8842, 5.4559, 7.1569), JACOBSEN,
        (0.1845, 0.1585, 0.0630, 0.6910, -0.0870, 0.6070, 0.1824, 0.5498, 0.0806, 0.0296, 0.8120)),
    Row("pyroxene", "CaMgSi2O6", (9.7460, 8.8990, 5.2510, 105.63), CAMERON,
        (0.3015, 0.9082, 0.2862, 0.0933, 0.2293, 0.1156, 0.0873, 0.1422, 0.3611, 0.2500, 0.3180,
         0.3505, 0.0176, 0.9953)),
    Row("pyroxene", "NaAlSi2O6", (9.4230, 8.5640, 5.2230, 107.56), CAMERON,
        (0.3005, 0.9058, 0.2906, 0.0933, 0.2277, 0.1090, 0.0763, 0.1275, 0.3611, 0.2633, 0.2932,
         0.3541, 0.0072, 0.0060)),
    Row("kyanite", "Al2SiO5", (7.1262, 7.8520, 5.5724, 89.99, 101.11, 106.03), WINTER,
        (0.3254, 0.7040, 0.4582, 0.2974, 0.6989, 0.9505, 0.0998, 0.3862, 0.6403, 0.1120, 0.9175, 0.1649,
         0.2962, 0.0649, 0.7066, 0.2910, 0.3317, 0.1892,
         0.1095, 0.1468, 0.1288, 0.1230, 0.6856, 0.1812, 0.2747, 0.4545, 0.9547, 0.2831, 0.9354, 0.9353,
         0.1084, 0.1520, 0.6669, 0.1219, 0.6307, 0.6389, 0.2822, 0.4453, 0.4288, 0.2915, 0.9467, 0.4659,
         0.5008, 0.2749, 0.2440, 0.5015, 0.2312, 0.7553)),
    Row("wollastonite", "CaSiO3", (7.9258, 7.3202, 7.0653, 90.055, 95.217, 103.426), OHASHI,
        (0.1985, 0.4228, 0.7608, 0.2027, 0.9293, 0.7640, 0.5034, 0.7505, 0.5280,
         0.1852, 0.3870, 0.2687, 0.1849, 0.9545, 0.2692, 0.3970, 0.7235, 0.0560,
         0.4291, 0.2314, 0.8019, 0.4008, 0.7259, 0.8302, 0.3037, 0.4635, 0.4641, 0.3017, 0.9374, 0.4655,
         0.0154, 0.6254, 0.7343, 0.0175, 0.1319, 0.7353, 0.2732, 0.5118, 0.0919, 0.2713, 0.8717, 0.0940,
         0.2188, 0.1784, 0.2228)),
    Row("albite", "NaAlSi3O8", (8.1420, 12.7850, 7.1590, 94.19, 116.61, 87.68), HARLOW,
        (0.2684, 0.9890, 0.1463, 0.0089, 0.1685, 0.2080, 0.0039, 0.8205, 0.2371, 0.6920, 0.1103, 0.3150,
         0.6814, 0.8818, 0.3607, 0.0050, 0.1309, 0.9669, 0.5928, 0.9969, 0.2800, 0.8130, 0.1103, 0.1907,
         0.8201, 0.8511, 0.2590, 0.0139, 0.3017, 0.2699, 0.0239, 0.6939, 0.2297, 0.2077, 0.1090, 0.3890,
         0.1839, 0.8680, 0.4360)),
)  # fmt: skip
