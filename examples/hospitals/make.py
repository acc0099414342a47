"""Write the tables of five hospitals: synthetic patients, the same ones on every call.

    python examples/hospitals/make.py

The hospitals differ in size, in their patients and in how they write their files: columns in another order, values that
are missing, a ward that only one of them has. Whether a patient is readmitted depends on the columns partly in the same
way everywhere, partly in one way at the three general hospitals and in another at the two clinics for the elderly.
"""

import csv
from pathlib import Path

import numpy as np

COLUMNS = ["age", "sex", "ward", "admitted", "creatinine", "systolic", "emergency", "days", "patient", "readmitted"]
# name: patients, mean age, wards, share of missing creatinine, whether it is a clinic for the elderly
HOSPITALS = {
    "north": (190, 58, ("surgery", "medicine", "cardiology"), 0.05, False),
    "south": (150, 61, ("surgery", "medicine"), 0.15, False),
    "coast": (120, 56, ("surgery", "medicine", "cardiology"), 0.0, False),
    "lakeside": (140, 79, ("medicine", "geriatrics", "rehabilitation"), 0.10, True),
    "hilltop": (40, 81, ("medicine", "geriatrics"), 0.25, True),
}


def patients(name: str, rng: np.random.Generator) -> list[dict[str, str]]:
    """The rows of one hospital."""
    number, mean_age, wards, missing, elderly = HOSPITALS[name]
    rows = []
    for _ in range(number):
        age = int(np.clip(rng.normal(mean_age, 9 if elderly else 14), 18, 99))
        sex, ward = str(rng.choice(["f", "m"])), str(rng.choice(wards))
        emergency = rng.random() < 0.35
        creatinine = float(np.exp(rng.normal(0.05 + 0.005 * (age - 60), 0.3)))
        systolic = int(np.clip(rng.normal(128 + 0.3 * (age - 60), 16), 85, 210))
        days = 1 + int(rng.gamma(2.0, 2.5 if elderly else 1.6))
        log_odds = -1.2 + 1.1 * (days - 4) / 3 + 1.0 * emergency + 1.5 * (creatinine - 1.1)
        if elderly:  # low blood pressure is what matters, and age no more
            log_odds += 0.6 - 1.2 * (systolic - 133) / 16
        else:
            log_odds += 0.8 * (age - 58) / 14
        day = np.datetime64("2023-01-01") + int(rng.integers(365))
        rows.append(
            {
                "age": str(age),
                "sex": sex if rng.random() > 0.02 else "",
                "ward": ward,
                "admitted": str(day),
                "creatinine": "" if rng.random() < missing else f"{creatinine:.2f}",
                "systolic": str(systolic),
                "emergency": "true" if emergency else "false",
                "days": str(days),
                "patient": f"{name[:1].upper()}{rng.integers(10**8):08d}",
                "readmitted": "yes" if rng.random() < 1 / (1 + np.exp(-log_odds)) else "no",
            }
        )
    return rows


def main(folder: Path = Path(__file__).parent) -> None:
    """Write one CSV file for each hospital."""
    for number, name in enumerate(HOSPITALS):
        rng = np.random.default_rng([15, number])
        rows = patients(name, rng)
        order = [COLUMNS[i] for i in rng.permutation(len(COLUMNS))]
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, order, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
