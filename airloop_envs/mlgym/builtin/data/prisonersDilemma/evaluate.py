from matches import play
from target import PAYOFFS, chance_of_zero
from verdict import report

if __name__ == "__main__":
    report(lambda: play(chance_of_zero, PAYOFFS))
