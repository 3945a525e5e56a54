# A worker is known by its namespace and Kubernetes account: there is no account of Google to impersonate. Each job has one of its own,
# which creates objects below its own prefix and reads its own runs. The slash at the end counts: without it `a` would include `a-b`.

resource "google_storage_bucket_iam_member" "jobs_create" {
  for_each = toset(var.jobs)
  bucket   = var.bucket
  role     = "roles/storage.objectCreator"
  member   = "${local.principals}/ns/nightshift/sa/nightshift-${each.key}"

  condition {
    title      = "own-prefix"
    expression = "resource.name.startsWith(\"${local.objects}/_workers/${each.key}/\")"
  }
}

resource "google_storage_bucket_iam_member" "jobs_read" {
  for_each = toset(var.jobs)
  bucket   = var.bucket
  role     = "roles/storage.objectViewer"
  member   = "${local.principals}/ns/nightshift/sa/nightshift-${each.key}"

  condition {
    title = "own-runs"
    # The right to list is one on the bucket.
    expression = join(" || ", [
      "resource.name == \"projects/_/buckets/${var.bucket}\"",
      "resource.name.startsWith(\"${local.objects}/${each.key}/\")",
      "resource.name.startsWith(\"${local.objects}/_workers/${each.key}/\")",
    ])
  }
}
