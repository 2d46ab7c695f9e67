"""Perovskites, cubic and distorted, their relatives, and superconducting cuprates and pnictides."""

from __future__ import annotations

from data_gen.materials.prototypes import Prototype, Row

LB = "Landolt-Börnstein III/4"
W2 = "Wyckoff, Crystal Structures vol. 2"
GELLER = "Geller, J. Chem. Phys. 24 (1956) 1236"
KWEI = "Kwei et al., J. Phys. Chem. 97 (1993) 2368"
NELMES = "Nelmes and Kuhs, Solid State Commun. 54 (1985) 721"
HEWAT = "Hewat, J. Phys. C 6 (1973) 2559"
SASAKI = "Sasaki, Prewitt, Bass and Schulze, Acta Cryst. C43 (1987) 1668"
CARVAJAL = "Rodríguez-Carvajal et al., Phys. Rev. B 57 (1998) R3189"
HORIUCHI = "Horiuchi, Ito and Weidner, Am. Mineral. 72 (1987) 357"
KUBEL = "Kubel and Schmid, Acta Cryst. B46 (1990) 698"
ABRAHAMS = "Abrahams et al., J. Phys. Chem. Solids 27 (1966) 997; 28 (1967) 1685"

PROTOTYPES = {
    "perovskite": Prototype(221, "cubic", "A 0 0 0; B 1/2 1/2 1/2; C 1/2 1/2 0"),
    "antiperovskite": Prototype(221, "cubic", "A 0 0 0; B 1/2 1/2 0; C 1/2 1/2 1/2"),
    "rhenium-trioxide": Prototype(221, "cubic", "A 0 0 0; B 1/2 0 0"),
    "tetragonal-perovskite": Prototype(99, "tetragonal", "A 0 0 0; B 1/2 1/2 z1; C 1/2 1/2 z2; C 1/2 0 z3"),
    "orthorhombic-KNbO3": Prototype(38, "orthorhombic", "A 0 0 z1; B 1/2 0 1/2; C 0 0 z2; C 1/2 y3 z3"),
    "GdFeO3": Prototype(62, "orthorhombic", "A x1 1/4 z1; B 0 0 1/2; C x2 1/4 z2; C x3 y3 z3"),
    "rhombohedral-LaAlO3": Prototype(167, "hexagonal", "A 0 0 1/4; B 0 0 0; C x 0 1/4"),
    "LiNbO3": Prototype(161, "hexagonal", "A 0 0 z1; B 0 0 0; C x2 y2 z2"),
    "BiFeO3": Prototype(161, "hexagonal", "A 0 0 0; B 0 0 z1; C x2 y2 z2"),
    "elpasolite": Prototype(225, "cubic", "A 1/4 1/4 1/4; B 0 0 0; C 1/2 1/2 1/2; D x 0 0"),
    "K2NiF4": Prototype(139, "tetragonal", "A 0 0 z1; B 0 0 0; C 0 1/2 0; C 0 0 z2"),
    "YBCO": Prototype(
        47,
        "orthorhombic",
        "A 1/2 1/2 1/2; B 1/2 1/2 z1; C 0 0 0; C 0 0 z2; D 0 1/2 0; D 1/2 0 z3; D 0 1/2 z4; D 0 0 z5",
    ),
    "ThCr2Si2": Prototype(139, "tetragonal", "A 0 0 0; B 0 1/2 1/4; C 0 0 z"),
}

ROWS = (
    Row("perovskite", "SrTiO3", (3.9050,), LB),
    Row("perovskite", "KTaO3", (3.9885,), LB),
    Row("perovskite", "BaZrO3", (4.1930,), LB),
    Row("perovskite", "BaSnO3", (4.1163,), LB),
    Row("perovskite", "BaHfO3", (4.1710,), LB),
    Row("perovskite", "SrVO3", (3.8425,), LB),
    Row("perovskite", "SrFeO3", (3.8510,), LB),
    Row("perovskite", "KMgF3", (3.9889,), LB),
    Row("perovskite", "KMnF3", (4.1890,), LB),
    Row("perovskite", "KNiF3", (4.0120,), LB),
    Row("perovskite", "KZnF3", (4.0560,), LB),
    Row("perovskite", "RbMnF3", (4.2396,), LB),
    Row("perovskite", "BaLiF3", (3.9950,), LB),
    Row("antiperovskite", "Fe4N", (3.7950,), "Jack, Proc. R. Soc. A 195 (1948) 34", (), "Fe Fe N"),
    Row("antiperovskite", "MgNi3C", (3.8125,), "He et al., Nature 411 (2001) 54"),
    Row("rhenium-trioxide", "ReO3", (3.7504,), W2),
    Row("tetragonal-perovskite", "BaTiO3", (3.9910, 4.0352), KWEI, (0.5224, -0.0244, 0.4895)),
    Row("tetragonal-perovskite", "PbTiO3", (3.9020, 4.1560), NELMES, (0.5377, 0.1118, 0.6174)),
    Row("orthorhombic-KNbO3", "KNbO3", (3.9730, 5.6950, 5.7213), HEWAT, (0.0138, 0.5364, 0.2481, 0.2804)),
    Row("GdFeO3", "CaTiO3", (5.4423, 7.6401, 5.3796), SASAKI,
        (0.0360, -0.0068, 0.4838, 0.0714, 0.2888, 0.0371, 0.7108)),
    Row("GdFeO3", "SrRuO3", (5.5304, 7.8446, 5.5670), "Jones et al., Acta Cryst. C45 (1989) 365",
        (0.0157, -0.0027, 0.4966, 0.0532, 0.2764, 0.0278, 0.7236)),
    Row("GdFeO3", "GdFeO3", (5.6110, 7.6690, 5.3490), GELLER,
        (0.0629, -0.0156, 0.4669, 0.1005, 0.3016, 0.0506, 0.6957)),
    Row("GdFeO3", "LaMnO3", (5.7473, 7.6929, 5.5367), CARVAJAL,
        (0.0490, -0.0078, 0.4874, 0.0745, 0.3066, 0.0384, 0.7256)),
    Row("GdFeO3", "YAlO3", (5.3300, 7.3750, 5.1800), "Diehl and Brandt, Mater. Res. Bull. 10 (1975) 85",
        (0.0526, -0.0104, 0.4750, 0.0860, 0.2940, 0.0440, 0.7030)),
    Row("GdFeO3", "DyScO3", (5.7170, 7.9010, 5.4430), "Veličkov et al., Z. Kristallogr. 222 (2007) 466",
        (0.0607, -0.0172, 0.4468, 0.1196, 0.3040, 0.0617, 0.6926)),
    Row("GdFeO3", "CaZrO3", (5.7590, 8.0070, 5.5831), "Koopmans et al., Acta Cryst. C39 (1983) 1323",
        (0.0495, -0.0122, 0.4586, 0.1040, 0.3014, 0.0555, 0.6983)),
    Row("GdFeO3", "MgSiO3", (4.9292, 6.8969, 4.7754), HORIUCHI,
        (0.5560, 0.5141, 0.4660, 0.1028, 0.2014, 0.5531, 0.1961)),
    Row("rhombohedral-LaAlO3", "LaAlO3", (5.3647, 13.1114), "Howard et al., J. Phys.: Condens. Matter 12 (2000) 349",
        (0.5250,)),
    Row("LiNbO3", "LiNbO3", (5.1483, 13.8631), ABRAHAMS, (0.2787, 0.0492, 0.3446, 0.0647)),
    Row("LiNbO3", "LiTaO3", (5.1543, 13.7835), ABRAHAMS, (0.2790, 0.0492, 0.3436, 0.0687)),
    Row("BiFeO3", "BiFeO3", (5.5787, 13.8688), KUBEL, (0.2209, 0.4430, 0.0120, 0.9543)),
    Row("elpasolite", "Cs2NaYCl6", (10.7315,), LB, (0.2560,)),
    Row("K2NiF4", "K2NiF4", (4.0060, 13.0760), W2, (0.3520, 0.1510)),
    Row("K2NiF4", "Sr2TiO4", (3.8840, 12.6000), W2, (0.3550, 0.1570)),
    Row("K2NiF4", "Sr2RuO4", (3.8702, 12.7323), "Chmaissem et al., Phys. Rev. B 57 (1998) 5067", (0.3532, 0.1619)),
    Row("YBCO", "YBa2Cu3O7", (3.8227, 3.8872, 11.6802), "Beno et al., Appl. Phys. Lett. 51 (1987) 57",
        (0.1843, 0.3556, 0.3773, 0.3789, 0.1584)),
    Row("ThCr2Si2", "BaFe2As2", (3.9625, 13.0168), "Rotter et al., Phys. Rev. B 78 (2008) 020503", (0.3545,)),
    Row("ThCr2Si2", "CeCu2Si2", (4.1030, 9.9270), W2, (0.3790,)),
)  # fmt: skip
