"""Names of the texts of a sample that no rewrite makes."""

# Of the data: hard negatives, paraphrases, and other captions of the image.
GIVEN, GIVEN_POSITIVE, OTHER_CAPTION = "given", "given-positive", "other-caption"
OF_DATA = (GIVEN, GIVEN_POSITIVE, OTHER_CAPTION)
# Of a file of written texts.
WRITTEN_POSITIVE, WRITTEN_NEGATIVE = "written-positive", "written-negative"
WRITTEN = (WRITTEN_POSITIVE, WRITTEN_NEGATIVE)
