"""Layered crystals: dichalcogenides, hydroxides, halides, tetradymites, graphite-like and van der Waals oxides."""

from __future__ import annotations

from data_gen.materials.prototypes import Prototype, Row

W1 = "Wyckoff, Crystal Structures vol. 1"
PEARSON = "Pearson's Handbook of Crystallographic Data for Intermetallic Phases"
SCHUTTE = "Schutte, de Boer and Jellinek, J. Solid State Chem. 70 (1987) 207"
BRONSEMA = "Bronsema, de Boer and Jellinek, Z. anorg. allg. Chem. 540 (1986) 15"
PUOTINEN = "Puotinen and Newnham, Acta Cryst. 14 (1961) 691"
BROWN = "Brown, Acta Cryst. 20 (1966) 36"
WIEDEMEIER = "Wiedemeier and von Schnering, Z. Kristallogr. 148 (1978) 295; 156 (1981) 143"
ENJALBERT = "Enjalbert and Galy, Acta Cryst. C42 (1986) 1467"
KIHLBORG = "Kihlborg, Ark. Kemi 21 (1963) 357"
DESGRANGES = "Desgranges et al., Acta Cryst. B49 (1993) 812"
SHANNON = "Shannon, Rogers and Prewitt, Inorg. Chem. 10 (1971) 713"
FURUSETH = "Furuseth, Selte and Kjekshus, Acta Chem. Scand. 19 (1965) 257"
FEUTELAIS = "Feutelais et al., Mater. Res. Bull. 28 (1993) 591"
PEREZ = "Pérez Vicente et al., Inorg. Chem. 38 (1999) 2131"
ANDERSON = "Anderson and Krause, Acta Cryst. B30 (1974) 1307"
MAX = "Barsoum, MAX Phases (2013)"

PROTOTYPES = {
    "2H-MoS2": Prototype(194, "hexagonal", "A 1/3 2/3 1/4; B 1/3 2/3 z"),
    "2H-NbSe2": Prototype(194, "hexagonal", "A 0 0 1/4; B 1/3 2/3 z"),
    "1T-CdI2": Prototype(164, "hexagonal", "A 0 0 0; B 1/3 2/3 z"),
    "brucite": Prototype(164, "hexagonal", "A 0 0 0; B 1/3 2/3 z1; C 1/3 2/3 z2"),
    "cadmium-chloride": Prototype(166, "hexagonal", "A 0 0 0; B 0 0 z"),
    "tetradymite": Prototype(166, "hexagonal", "A 0 0 z1; B 0 0 0; B 0 0 z2"),
    "hexagonal-BN": Prototype(194, "hexagonal", "A 1/3 2/3 1/4; B 1/3 2/3 3/4"),
    "gallium-sulfide": Prototype(194, "hexagonal", "A 1/3 2/3 z1; B 1/3 2/3 z2"),
    "germanium-sulfide": Prototype(62, "orthorhombic", "A x1 1/4 z1; B x2 1/4 z2"),
    "delafossite": Prototype(166, "hexagonal", "A 0 0 0; B 0 0 1/2; C 0 0 z"),
    "layered-LiCoO2": Prototype(166, "hexagonal", "A 0 0 1/2; B 0 0 0; C 0 0 z"),
    "litharge": Prototype(129, "tetragonal", "B 0 0 0; A 0 1/2 z"),
    "vanadium-pentoxide": Prototype(
        59, "orthorhombic", "A x1 1/4 z1; B x2 1/4 z2; B x3 1/4 z3; B 1/4 1/4 z4", setting=2
    ),
    "molybdite": Prototype(62, "orthorhombic", "A x1 1/4 z1; B x2 1/4 z2; B x3 1/4 z3; B x4 1/4 z4"),
    "MAX-211": Prototype(194, "hexagonal", "A 1/3 2/3 z; B 1/3 2/3 3/4; C 0 0 0"),
    "MAX-312": Prototype(194, "hexagonal", "A 0 0 0; A 1/3 2/3 z1; B 0 0 1/4; C 1/3 2/3 z2"),
}

ROWS = (
    Row("2H-MoS2", "MoS2", (3.1602, 12.2940), BRONSEMA, (0.6213,)),
    Row("2H-MoS2", "MoSe2", (3.2890, 12.9270), BRONSEMA, (0.6210,)),
    Row("2H-MoS2", "MoTe2", (3.5190, 13.9650), PUOTINEN, (0.6210,)),
    Row("2H-MoS2", "WS2", (3.1532, 12.3230), SCHUTTE, (0.6225,)),
    Row("2H-MoS2", "WSe2", (3.2820, 12.9600), SCHUTTE, (0.6211,)),
    Row("2H-NbSe2", "NbSe2", (3.4446, 12.5444), "Marezio et al., J. Solid State Chem. 4 (1972) 425", (0.1172,)),
    Row("2H-NbSe2", "TaSe2", (3.4360, 12.6960), PEARSON, (0.1180,)),
    Row("1T-CdI2", "CdI2", (4.2445, 6.8642), W1, (0.2492,)),
    Row("1T-CdI2", "TiS2", (3.4073, 5.6953), "Riekel and Schöllhorn, Mater. Res. Bull. 10 (1975) 629", (0.2501,)),
    Row("1T-CdI2", "TiSe2", (3.5400, 6.0080), W1, (0.2550,)),
    Row("1T-CdI2", "ZrS2", (3.6620, 5.8130), W1, (0.2500,)),
    Row("1T-CdI2", "HfSe2", (3.7480, 6.1590), W1, (0.2550,)),
    Row("1T-CdI2", "SnS2", (3.6486, 5.8992), "Hazen and Finger, Am. Mineral. 63 (1978) 289", (0.2500,)),
    Row("1T-CdI2", "PtSe2", (3.7278, 5.0813), FURUSETH, (0.2550,)),
    Row("1T-CdI2", "TaS2", (3.3649, 5.8971), "Spijkerman et al., Phys. Rev. B 56 (1997) 13757", (0.2580,)),
    Row("brucite", "MgO2H2", (3.1500, 4.7700), "Catti et al., Phys. Chem. Miner. 22 (1995) 200", (0.2203, 0.4130)),
    Row("brucite", "CaO2H2", (3.5899, 4.9160), DESGRANGES, (0.2341, 0.4248)),
    Row("cadmium-chloride", "CdCl2", (3.8450, 17.4570), W1, (0.2519,)),
    Row("cadmium-chloride", "MgCl2", (3.6363, 17.6663), W1, (0.2578,)),
    Row("cadmium-chloride", "FeCl2", (3.5980, 17.5360), W1, (0.2543,)),
    Row("tetradymite", "Bi2Te3", (4.3950, 30.4400), FEUTELAIS, (0.4000, 0.2097)),
    Row("tetradymite", "Bi2Se3", (4.1430, 28.6360), PEREZ, (0.4008, 0.2117)),
    Row("tetradymite", "Sb2Te3", (4.2640, 30.4580), ANDERSON, (0.3988, 0.2128)),
    Row("hexagonal-BN", "BN", (2.5040, 6.6612), "Pease, Acta Cryst. 5 (1952) 356"),
    Row("gallium-sulfide", "GaS", (3.5870, 15.4920), "Kuhn et al., Acta Cryst. B32 (1976) 983", (0.1710, 0.6016)),
    Row("germanium-sulfide", "SnS", (11.2000, 3.9870, 4.3340), WIEDEMEIER, (0.1198, 0.1194, 0.8508, 0.4793)),
    Row("germanium-sulfide", "SnSe", (11.5010, 4.1530, 4.4450), WIEDEMEIER, (0.1185, 0.1030, 0.8552, 0.4820)),
    Row("germanium-sulfide", "GeSe", (10.8400, 3.8340, 4.3900), WIEDEMEIER, (0.1213, 0.1115, 0.8534, 0.5019)),
    Row("delafossite", "CuAlO2", (2.8570, 16.9400), SHANNON, (0.1099,)),
    Row("delafossite", "CuFeO2", (3.0351, 17.1560), SHANNON, (0.1066,)),
    Row("delafossite", "PdCoO2", (2.8300, 17.7430), SHANNON, (0.1112,)),
    Row("layered-LiCoO2", "LiCoO2", (2.8160, 14.0540), "Orman and Wiseman, Acta Cryst. C40 (1984) 12", (0.2605,)),
    Row("litharge", "PbO", (3.9760, 5.0230), W1, (0.2350,)),
    Row("litharge", "SnO", (3.8029, 4.8382), "Pannetier and Denes, Acta Cryst. B36 (1980) 2763", (0.2383,)),
    Row("litharge", "FeSe", (3.7734, 5.5258), "Hsu et al., PNAS 105 (2008) 14262", (0.2672,), "Se Fe"),
    Row("vanadium-pentoxide", "V2O5", (11.5120, 3.5640, 4.3680), ENJALBERT,
        (0.10118, 0.8917, 0.1043, 0.5310, 0.9311, 0.0030, 0.0010)),
    Row("molybdite", "MoO3", (13.8550, 3.6964, 3.9628), KIHLBORG,
        (0.10164, 0.0867, 0.4351, 0.4994, 0.0866, 0.5212, 0.2214, 0.0373)),
    Row("MAX-211", "Cr2AlC", (2.8600, 12.8200), MAX, (0.0850,)),
    Row("MAX-211", "Ti2AlC", (3.0560, 13.6230), MAX, (0.0837,)),
    Row("MAX-211", "Ti2AlN", (2.9890, 13.6150), MAX, (0.0860,)),
    Row("MAX-312", "Ti3SiC2", (3.0665, 17.6710), "Kisi et al., J. Phys. Chem. Solids 59 (1998) 1437", (0.1355, 0.5722)),
)  # fmt: skip
