"""Caption rewrites: hard negatives (meaning changed) and hard positives (meaning kept)."""
