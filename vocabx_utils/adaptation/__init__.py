"""From a model and a pile of text to a model folder and a report, in one call: `vocabx adapt` and the verb `adapt`.

Begin with `run`: the parts in their order. What it calls:

* `settings`: what can be chosen, and the sizes that follow from the device;
* `texts`: reading a folder or JSON Lines, and the split by file;
* `steps`: parts that are done once and found again, and where a killed command goes on;
* `plan`: what it will cost, before anything is loaded;
* `proposal`: the new tokens, and what they save;
* `sweep`: the learning rate and the number of epochs;
* `learning`: phase 1, LoRA and the export;
* `measures`: the model folder against the base on held-out text;
* `report`: one HTML file of all of it, from `report.html.j2`.

Everything is made from the functions of the wings below; nothing here trains or measures in a way of its own.
"""
