"""`python -m vocabx_utils` is the command `vocabx`."""

from vocabx_utils.cli import main

if __name__ == "__main__":
    main(prog_name="vocabx")
