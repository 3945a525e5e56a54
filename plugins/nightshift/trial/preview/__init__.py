"""`nightshift preview`: previews, from the question to the result; results, kept in the bucket for the page; preview_text."""
