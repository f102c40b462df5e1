"""A small checkout in MLGym's form: its layout, keys and habits, with tasks, data and texts of our own.

    titanic                     CSV; ground truth that is a gender rule, readable in data/, and a baseline `Accuracy`
    prisonersDilemma            Python; evaluate.py, strategy.py, target.py (secret)
    regressionKaggleHousePrice  CSV; prints rmse before r2, a baseline script, no baseline_scores
    pointsModel                 Model; a YAML that names weights; chatter before the line with the scores
    letterModel                 LM; started by torchrun, needs no torch
    hubPictures                 data on a hub
    broken                      a YAML that cannot be parsed
    oddMetric                   a metric nobody knows

Every evaluate.py and baseline runs with the standard library and numpy.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from textwrap import dedent

TITANIC = {
    "configs/datasets/titanic.yaml": """\
        name: titanic
        description: Passengers of a ship. train.csv has the column Survived, test.csv has not.
        data_path: data/titanic
        is_local: true
        train_split: {name: train, file_regex: train.csv}
        test_split: {name: test, file_regex: test.csv}
        """,
    "configs/tasks/titanic.yaml": """\
        id: titanicSurvival
        name: Who survived
        description: |-
          Predict who survived. Write submission.csv with the columns PassengerId and Survived.

          {dataset_docs}
        dataset_configs:
          - datasets/titanic.yaml
        task_entrypoint: CSVSubmissionTasks
        training_timeout: 3600
        use_generic_conda: true
        starter_code:
          - data/titanic/evaluate.py
        baseline_paths: []
        baseline_scores:
          - Accuracy: 0.76555
        sample_submission: data/titanic/sample_submission.csv
        evaluation_paths:
          - evaluate.py
        evaluation_read_only: true
        """,
    "data/titanic/evaluate.py": """\
        import argparse, csv, json

        parser = argparse.ArgumentParser()
        parser.add_argument("--submission_file", default="submission.csv")
        args = parser.parse_args()
        truth = {row["PassengerId"]: row["Survived"] for row in csv.DictReader(open("data/ground_truth.csv"))}
        given = {row["PassengerId"]: row["Survived"] for row in csv.DictReader(open(args.submission_file))}
        right = sum(given.get(key) == value for key, value in truth.items())
        print(json.dumps({"accuracy": right / len(truth)}))
        """,
}

DILEMMA = {
    "configs/tasks/prisonersDilemma.yaml": """\
        id: prisonersDilemma
        name: A repeated dilemma
        description: |
          Ten rounds against a fixed opponent. Change row_strategy in strategy.py to score more.
          0 is to cooperate, 1 is to defect; history is a list of (yours, theirs), such as [(0, 1)].
          Payoffs {yours, theirs}: both cooperate {3, 3}, both defect {1, 1}, one defects {5, 0}.
        task_entrypoint: PythonSubmissionTasks
        training_timeout: 1800
        starter_code:
          - data/prisonersDilemma/evaluate.py
          - data/prisonersDilemma/strategy.py
          - data/prisonersDilemma/target.py
        baseline_paths:
          - evaluate.py
        baseline_scores:
          - Score: 2.3716
        evaluation_paths:
          - evaluate.py
        secret_files:
          - target.py
        benchmark_name: games
        """,
    "data/prisonersDilemma/strategy.py": '''\
        import random


        def row_strategy(history):
            """Cooperates now and then."""
            return 0 if random.random() < 0.163 else 1
        ''',
    # Defecting always is best and scores 2.6: below the optimum against MLGym's own opponent.
    "data/prisonersDilemma/target.py": """\
        import random


        def target_column_strategy(history):
            return 0 if random.random() < 0.4 else 1
        """,
    "data/prisonersDilemma/evaluate.py": """\
        import json

        from strategy import row_strategy
        from target import target_column_strategy

        PAYOFF = {(0, 0): 3, (0, 1): 0, (1, 0): 5, (1, 1): 1}
        GAMES, ROUNDS = 10_000, 10

        total = 0
        for _ in range(GAMES):
            history = []
            for _ in range(ROUNDS):
                moves = row_strategy(history), target_column_strategy([(b, a) for a, b in history])
                total += PAYOFF[moves]
                history.append(moves)
        print(json.dumps({"Score": total / GAMES / ROUNDS}))
        """,
}

HOUSES = {
    "configs/datasets/houses.yaml": """\
        name: houses
        description: "area, rooms, age and price of houses; test.csv has no price"
        data_path: data/houses/data
        is_local: true
        """,
    "configs/tasks/regressionKaggleHousePrice.yaml": """\
        id: regressionKaggleHousePrice
        name: House prices
        description: "Predict the price of the houses in data/test.csv.\\n\\n{dataset_docs}"
        dataset_configs: [datasets/houses.yaml]
        task_entrypoint: CSVSubmissionTasks
        training_timeout: null
        requirements_path:
        starter_code: [data/houses/evaluate.py, data/houses/baseline.py]
        baseline_paths: [baseline.py]
        evaluation_paths: [evaluate.py]
        secret_files: [data/prices.csv]
        """,
    "data/houses/baseline.py": """\
        import csv

        rows = list(csv.DictReader(open("data/train.csv")))
        mean_price = sum(float(row["price"]) for row in rows) / len(rows)
        mean_area = sum(float(row["area"]) for row in rows) / len(rows)
        with open("submission.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "price"])
            for row in csv.DictReader(open("data/test.csv")):
                writer.writerow([row["id"], mean_price * float(row["area"]) / mean_area])
        """,
    "data/houses/evaluate.py": """\
        import argparse, csv, json, os
        import numpy as np

        parser = argparse.ArgumentParser()
        parser.add_argument("--submission_file", required=True)
        path = parser.parse_args().submission_file
        test = [row["id"] for row in csv.DictReader(open(os.path.join("data", "test.csv")))]
        truth = {row["id"]: float(row["price"]) for row in csv.DictReader(open(os.path.join("data", "prices.csv")))}
        given = {row["id"]: float(row["price"]) for row in csv.DictReader(open(path))}
        a, b = np.array([truth[i] for i in test]), np.array([given[i] for i in test])
        rmse = float(np.sqrt(np.mean((a - b) ** 2)))
        print(json.dumps({"rmse": rmse, "r2": float(1 - np.sum((a - b) ** 2) / np.sum((a - a.mean()) ** 2))}))
        """,
}

POINTS = {
    "configs/datasets/points.yaml": """\
        name: points
        description: Points of two kinds in a plane; x, y and kind.
        data_path: data/points/data
        is_local: true
        valid_split: {name: validation, file_regex: "*.csv"}
        """,
    "configs/tasks/pointsModel.yaml": """\
        id: pointsModel
        name: Two kinds of points
        description: |-
          Train a linear model. Write weights.npy (three numbers: w_x, w_y, bias) and config.yaml with the one
          line `weights: weights.npy`.
          {dataset_docs}
        dataset_configs: [datasets/points.yaml]
        task_entrypoint: ModelSubmissionTasks
        training_timeout: 600
        starter_code:
          - data/points/evaluate.py
          - data/points/baseline
        baseline_paths: [baseline/train.py]
        baseline_scores:
          - accuracy: 0.66
        evaluation_paths: [evaluate.py]
        evaluation_read_only: false
        secret_files: [held_out.csv]
        """,
    "data/points/baseline/train.py": """\
        import numpy as np

        np.save("weights.npy", np.array([1.0, 0.0, 0.0]))
        with open("config.yaml", "w") as file:
            file.write("weights: weights.npy\\n")
        """,
    "data/points/evaluate.py": """\
        import argparse, json
        from pathlib import Path
        import numpy as np

        parser = argparse.ArgumentParser()
        parser.add_argument("--config_fname", required=True)
        config = Path(parser.parse_args().config_fname)
        entries = dict(line.split(":", 1) for line in config.read_text().splitlines() if ":" in line)
        weights = np.load(config.parent / entries["weights"].strip())
        rows = np.loadtxt("data/held_out.csv", delimiter=",", skiprows=1)
        print("scoring", len(rows), "points")
        right = (rows[:, :2] @ weights[:2] + weights[2] > 0) == (rows[:, 2] > 0.5)
        print(json.dumps({"accuracy": float(right.mean())}))
        """,
}

LETTERS = {
    "configs/datasets/letters.yaml": """\
        name: letters
        description: Text. train.txt is for training.
        data_path: data/letters/data
        is_local: true
        """,
    "configs/tasks/letterModel.yaml": """\
        id: letterModel
        name: Which letter comes next
        description: |-
          Write model.json, {"previous letter": {"letter": probability}}, with a low loss on unseen text.
          {dataset_docs}
        dataset_configs: [datasets/letters.yaml]
        task_entrypoint: LMSubmissionTasks
        training_timeout: 900
        starter_code: [data/letters/evaluate.py, data/letters/baseline.py]
        baseline_paths: [baseline.py]
        baseline_scores:
          - val_loss: 2.6472
        evaluation_paths: [evaluate.py]
        secret_files: [unseen.txt]
        """,
    "data/letters/baseline.py": """\
        import collections, json

        text = open("data/train.txt").read()
        counts = collections.Counter(text)
        share = {letter: count / len(text) for letter, count in counts.items()}
        json.dump({letter: share for letter in counts}, open("model.json", "w"))
        """,
    "data/letters/evaluate.py": """\
        import json, math, os

        text = open("data/unseen.txt").read()
        model = json.load(open("model.json"))
        loss = 0.0
        for before, letter in zip(text, text[1:]):
            loss -= math.log(max(1e-4, min(1.0, model.get(before, {}).get(letter, 0.0))))
        if os.environ.get("RANK", "0") == "0":
            print("letters:", len(text))
            print(json.dumps({"val_loss": loss / (len(text) - 1)}))
        """,
}

OTHERS = {
    "configs/datasets/hub_pictures.yaml": """\
        name: pictures
        description: Small pictures.
        data_path: example-org/air-test-pictures
        is_local: false
        """,
    "configs/tasks/hubPictures.yaml": """\
        id: hubPictures
        name: Small pictures
        description: "What is in the picture? {dataset_docs}"
        dataset_configs: [datasets/hub_pictures.yaml]
        task_entrypoint: CSVSubmissionTasks
        starter_code: [data/shared/evaluate.py]
        baseline_scores: [{accuracy: 0.5}]
        evaluation_paths: [evaluate.py]
        """,
    "configs/tasks/broken.yaml": """\
        id: broken
        starter_code: [data/shared/evaluate.py
        name: nobody closed the bracket
        """,
    "configs/tasks/oddMetric.yaml": """\
        id: oddMetric
        name: Wobble
        description: Make it wobble.
        task_entrypoint: PythonSubmissionTasks
        starter_code: [data/shared/evaluate.py]
        baseline_scores: [{wobble: 3.2}]
        evaluation_paths: [evaluate.py]
        """,
    "data/shared/evaluate.py": """\
        import json

        print(json.dumps({"wobble": 3.2}))
        """,
}

PROSE = (
    "the river runs past the mill and under the old bridge where children throw stones into the water and count "
    "the rings that spread until they meet the reeds on the other side while the miller mends his wheel and sings "
)
UNSEEN = "the children sing under the bridge and the old miller throws a stone into the river past the reeds "


def write_checkout(directory: Path) -> Path:
    """Writes the checkout below `directory`, always the same, and returns its root."""
    root = directory / "MLGym"
    for part in (TITANIC, DILEMMA, HOUSES, POINTS, LETTERS, OTHERS):
        for name, text in part.items():
            _write(root / name, dedent(text))
    dice = random.Random(7)
    _write_titanic(root / "data/titanic", dice)
    _write_houses(root / "data/houses/data", dice)
    _write_points(root / "data/points/data", dice)
    _write(root / "data/letters/data/train.txt", PROSE * 20)
    _write(root / "data/letters/data/unseen.txt", UNSEEN * 3)
    return root


def _write_titanic(directory: Path, dice: random.Random) -> None:
    rows = []
    for number in range(1, 201):
        sex, ticket = dice.choice(["male", "female"]), dice.choice([1, 2, 3])
        lived = dice.random() < (0.75 if sex == "female" else 0.2) + (0.1 if ticket == 1 else 0)
        rows.append([number, int(lived), ticket, sex, dice.randint(1, 70), round(dice.uniform(5, 90), 2)])
    features = ["Pclass", "Sex", "Age", "Fare"]
    _table(directory / "train.csv", ["PassengerId", "Survived", *features], rows[:140])
    _table(directory / "test.csv", ["PassengerId", *features], [[row[0], *row[2:]] for row in rows[140:]])
    rule = [[row[0], int(row[3] == "female")] for row in rows[140:]]
    for name in ("ground_truth.csv", "sample_submission.csv"):
        _table(directory / name, ["PassengerId", "Survived"], rule)


def _write_houses(directory: Path, dice: random.Random) -> None:
    rows = []
    for number in range(1, 181):
        area, rooms, age = dice.randint(40, 220), dice.randint(1, 7), dice.randint(0, 90)
        price = 30_000 + 1500 * area + 9000 * rooms - 900 * age + dice.gauss(0, 18_000)
        rows.append([number, area, rooms, age, round(price)])
    _table(directory / "train.csv", ["id", "area", "rooms", "age", "price"], rows[:120])
    _table(directory / "test.csv", ["id", "area", "rooms", "age"], [row[:4] for row in rows[120:]])
    _table(directory / "prices.csv", ["id", "price"], [[row[0], row[4]] for row in rows[120:]])


def _write_points(directory: Path, dice: random.Random) -> None:
    rows = []
    for _ in range(300):
        x, y = dice.gauss(0, 1), dice.gauss(0, 1)
        rows.append([round(x, 4), round(y, 4), int(x + 1.2 * y + dice.gauss(0, 0.4) > 0.2)])
    _table(directory / "train.csv", ["x", "y", "kind"], rows[:200])
    _table(directory / "held_out.csv", ["x", "y", "kind"], rows[200:])


def _table(path: Path, header: list[str], rows: list[list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
