"""The formats of models, one file each; `compoclip.models.checkpoint.formats` finds them here."""
