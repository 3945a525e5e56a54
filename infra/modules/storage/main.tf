variable "project" {
  type = string
}

variable "region" {
  type = string
}

variable "bucket" {
  type = string
}

variable "datasets" {
  type = list(string)
}

variable "lifecycle_days" {
  type = number
}

variable "kms_key" {
  type = string
}

variable "deletion_protection" {
  type = bool
}

resource "google_storage_bucket" "runs" {
  project  = var.project
  name     = var.bucket
  location = var.region
  # Conditions on names, and identities of the cluster, count only without object ACLs.
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = !var.deletion_protection

  # BigQuery's documentation asks for a bucket without soft delete for exports.
  soft_delete_policy {
    retention_duration_seconds = 0
  }

  # One age for the whole bucket: k8s/README.md, step 4, says what a shorter one for a part of it would break.
  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      age = var.lifecycle_days
    }
  }

  dynamic "encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      default_kms_key_name = encryption.value
    }
  }
}

resource "google_bigquery_dataset" "each" {
  for_each                   = toset(var.datasets)
  project                    = var.project
  dataset_id                 = each.key
  location                   = var.region
  delete_contents_on_destroy = !var.deletion_protection

  dynamic "default_encryption_configuration" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      kms_key_name = default_encryption_configuration.value
    }
  }
}

output "bucket" {
  value = google_storage_bucket.runs.name
}

output "datasets" {
  value = { for name, each in google_bigquery_dataset.each : name => each.dataset_id }
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    storage_bucket_runs   = google_storage_bucket.runs
    bigquery_dataset_each = google_bigquery_dataset.each
  }
}
