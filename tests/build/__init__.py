"""What tests build: files in the formats that the readers take, photos, folders of them."""
