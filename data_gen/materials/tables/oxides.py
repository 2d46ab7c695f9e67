"""Oxides of lower symmetry or larger cells: titania, corundum, spinel, bixbyite, pyrochlore, garnet, monoclinic."""

from __future__ import annotations

from data_gen.materials.prototypes import Prototype, Row

HORN = "Horn, Schwerdtfeger and Meagher, Z. Kristallogr. 136 (1972) 273"
HANN = "Hann, Suitch and Pentecost, J. Am. Ceram. Soc. 68 (1985) C285"
KOEHLER = "Koehler and Wollan, Acta Cryst. 6 (1953) 741"
NEWNHAM = "Newnham and de Haan, Z. Kristallogr. 117 (1962) 235"
BLAKE = "Blake et al., Am. Mineral. 51 (1966) 123"
HILL = "Hill, Craig and Gibbs, Phys. Chem. Miner. 4 (1979) 317"
SUBRAMANIAN = "Subramanian, Aravamudan and Subba Rao, Prog. Solid State Chem. 15 (1983) 55"
WECHSLER = "Wechsler and Prewitt, Am. Mineral. 69 (1984) 176; 74 (1989) 1052"
AHMAN = "Åhman, Svensson and Albertsson, Acta Cryst. C52 (1996) 1336"
HOWARD = "Howard, Hill and Reichert, Acta Cryst. B44 (1988) 116"
LONGO = "Longo and Kierkegaard, Acta Chem. Scand. 24 (1970) 420"
MEAGHER = "Meagher and Lager, Can. Mineral. 17 (1979) 77"
EULER = "Euler and Bruce, Acta Cryst. 19 (1965) 971"
NORRESTAM = "Norrestam, Ark. Kemi 29 (1968) 343"
OCONNOR = "O'Connor and Valentine, Acta Cryst. B25 (1969) 2140"
MAREZIO = "Marezio, Acta Cryst. 20 (1966) 723"

PROTOTYPES = {
    "anatase": Prototype(141, "tetragonal", "A 0 0 0; B 0 0 z"),
    "brookite": Prototype(61, "orthorhombic", "A x1 y1 z1; B x2 y2 z2; B x3 y3 z3"),
    "corundum": Prototype(167, "hexagonal", "A 0 0 z; B x 0 1/4"),
    "ilmenite": Prototype(148, "hexagonal", "A 0 0 z1; B 0 0 z2; C x3 y3 z3"),
    "spinel": Prototype(227, "cubic", "A 1/8 1/8 1/8; B 1/2 1/2 1/2; C u u u", setting=2),
    "hausmannite": Prototype(141, "tetragonal", "A 0 1/4 7/8; A 0 1/2 1/2; B 0 y z", setting=2),
    "bixbyite": Prototype(206, "cubic", "A 1/4 1/4 1/4; A x1 0 1/4; B x2 y2 z2"),
    "pyrochlore": Prototype(227, "cubic", "A 1/2 1/2 1/2; B 0 0 0; C x 1/8 1/8; C 3/8 3/8 3/8", setting=2),
    "garnet": Prototype(230, "cubic", "A 1/8 0 1/4; B 0 0 0; C 3/8 0 1/4; D x y z"),
    "baddeleyite": Prototype(14, "monoclinic", "A x1 y1 z1; B x2 y2 z2; B x3 y3 z3"),
    "vanadium-dioxide-M1": Prototype(14, "monoclinic", "A x1 y1 z1; B x2 y2 z2; B x3 y3 z3"),
    "tenorite": Prototype(15, "monoclinic", "A 1/4 1/4 0; B 0 y 1/4"),
    "beta-gallia": Prototype(12, "monoclinic", "A x1 0 z1; A x2 1/2 z2; B x3 0 z3; B x4 0 z4; B x5 1/2 z5"),
    "palladium-oxide": Prototype(131, "tetragonal", "A 0 1/2 0; B 0 0 1/4"),
    "lanthanum-sesquioxide": Prototype(164, "hexagonal", "A 1/3 2/3 z1; B 1/3 2/3 z2; B 0 0 0"),
    "tetragonal-zirconia": Prototype(137, "tetragonal", "A 3/4 1/4 3/4; B 1/4 1/4 z", setting=2),
}

ROWS = (
    Row("anatase", "TiO2", (3.7842, 9.5146), HORN, (0.2081,)),
    Row("brookite", "TiO2", (9.1840, 5.4470, 5.1450), MEAGHER,
        (0.1289, 0.0972, 0.8628, 0.0095, 0.1491, 0.1835, 0.2314, 0.1110, 0.5366)),
    Row("corundum", "Al2O3", (4.7602, 12.9933), NEWNHAM, (0.3522, 0.3063)),
    Row("corundum", "Cr2O3", (4.9607, 13.5990), NEWNHAM, (0.3475, 0.3058)),
    Row("corundum", "Fe2O3", (5.0380, 13.7720), BLAKE, (0.3553, 0.3059)),
    Row("corundum", "V2O3", (4.9520, 14.0030), NEWNHAM, (0.3463, 0.3118)),
    Row("corundum", "Ti2O3", (5.1570, 13.6100), NEWNHAM, (0.3447, 0.3133)),
    Row("ilmenite", "FeTiO3", (5.0884, 14.0855), WECHSLER, (0.3554, 0.1464, 0.3174, 0.0233, 0.2451)),
    Row("ilmenite", "MgTiO3", (5.0548, 13.8992), WECHSLER, (0.3557, 0.1451, 0.3159, 0.0215, 0.2464)),
    Row("spinel", "MgAl2O4", (8.0832,), HILL, (0.2624,)),
    Row("spinel", "ZnAl2O4", (8.0860,), HILL, (0.2636,)),
    Row("spinel", "CoAl2O4", (8.1050,), HILL, (0.2634,)),
    Row("spinel", "ZnFe2O4", (8.4411,), HILL, (0.2604,)),
    Row("spinel", "FeCr2O4", (8.3780,), HILL, (0.2630,)),
    Row("spinel", "ZnGa2O4", (8.3342,), HILL, (0.2617,)),
    Row("spinel", "LiMn2O4", (8.2480,), HILL, (0.2632,)),
    Row("spinel", "Fe3O4", (8.3958,), "Fleet, Acta Cryst. B37 (1981) 917", (0.2549,), "Fe Fe O"),
    Row("spinel", "Co3O4", (8.0835,), "Smith and Hobson, Acta Cryst. B29 (1973) 362", (0.2631,), "Co Co O"),
    Row("spinel", "Mg2SiO4", (8.0649,), "Sasaki et al., Phys. Chem. Miner. 8 (1982) 146", (0.2441,), "Si Mg O"),
    Row("spinel", "CdCr2Se4", (10.7350,), HILL, (0.2642,)),
    Row("hausmannite", "Mn3O4", (5.7650, 9.4420), "Jarosch, Mineral. Petrol. 37 (1987) 15", (0.4715, 0.2592)),
    Row("bixbyite", "In2O3", (10.1170,), MAREZIO, (0.4662, 0.3905, 0.1529, 0.3832)),
    Row("bixbyite", "Y2O3", (10.6040,), OCONNOR, (0.4673, 0.3907, 0.1520, 0.3801)),
    Row("bixbyite", "Sc2O3", (9.8450,), NORRESTAM, (0.4645, 0.3914, 0.1545, 0.3810)),
    Row("pyrochlore", "Y2Ti2O7", (10.0896,), SUBRAMANIAN, (0.3290,)),
    Row("pyrochlore", "Gd2Ti2O7", (10.1850,), SUBRAMANIAN, (0.3263,)),
    Row("pyrochlore", "La2Zr2O7", (10.8000,), SUBRAMANIAN, (0.3313,)),
    Row("garnet", "Y3Al5O12", (12.0062,), EULER, (0.9694, 0.0512, 0.1500), "Y Al Al O"),
    Row("garnet", "Y3Fe5O12", (12.3760,), EULER, (0.9726, 0.0572, 0.1495), "Y Fe Fe O"),
    Row("baddeleyite", "ZrO2", (5.1505, 5.2116, 5.3173, 99.23), HOWARD,
        (0.2754, 0.0395, 0.2083, 0.0700, 0.3317, 0.3447, 0.4496, 0.7569, 0.4792)),
    Row("baddeleyite", "HfO2", (5.1170, 5.1754, 5.2915, 99.22), HANN,
        (0.2759, 0.0401, 0.2082, 0.0740, 0.3320, 0.3470, 0.4490, 0.7580, 0.4800)),
    Row("vanadium-dioxide-M1", "VO2", (5.7517, 4.5378, 5.3825, 122.646), LONGO,
        (0.23947, 0.97894, 0.02646, 0.10616, 0.21185, 0.20859, 0.40051, 0.70258, 0.29884)),
    Row("tenorite", "CuO", (4.6837, 3.4226, 5.1288, 99.54), "Åsbrink and Norrby, Acta Cryst. B26 (1970) 8", (0.4184,)),
    Row("beta-gallia", "Ga2O3", (12.2140, 3.0371, 5.7981, 103.83), AHMAN,
        (0.0905, 0.7946, 0.1587, 0.3140, 0.1645, 0.1098, 0.1733, 0.5632, 0.9959, 0.2566)),
    Row("palladium-oxide", "PdO", (3.0430, 5.3370), "Waser, Levy and Peterson, Acta Cryst. 6 (1953) 661"),
    Row("lanthanum-sesquioxide", "La2O3", (3.9373, 6.1299), KOEHLER, (0.2450, 0.6450)),
    Row("tetragonal-zirconia", "ZrO2", (3.6067, 5.1758), HOWARD, (0.4590,)),
)  # fmt: skip
