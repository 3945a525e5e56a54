# With a key of one's own, the agents of Google's services encrypt with it, so each must be allowed to.

variable "key" {
  type = string
}

variable "project" {
  type = string
}

variable "number" {
  type = string
}

variable "cluster_number" {
  type = string
}

locals {
  wanted = var.key == null ? 0 : 1
  agents = var.key == null ? {} : {
    storage       = data.google_storage_project_service_account.storage[0].email_address
    bigquery      = data.google_bigquery_default_service_account.bigquery[0].email
    composer      = "service-${var.number}@cloudcomposer-accounts.iam.gserviceaccount.com"
    packages      = "service-${var.number}@gcp-sa-artifactregistry.iam.gserviceaccount.com"
    pubsub        = "service-${var.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
    images        = "service-${var.cluster_number}@gcp-sa-artifactregistry.iam.gserviceaccount.com"
    alloydb       = "service-${var.cluster_number}@gcp-sa-alloydb.iam.gserviceaccount.com"
    disks         = "service-${var.cluster_number}@compute-system.iam.gserviceaccount.com"
    cluster       = "service-${var.cluster_number}@container-engine-robot.iam.gserviceaccount.com"
    airflow_disks = "service-${var.number}@compute-system.iam.gserviceaccount.com"
    airflow_nodes = "service-${var.number}@container-engine-robot.iam.gserviceaccount.com"
  }
}

# These two agents come into being when they are asked for.
data "google_storage_project_service_account" "storage" {
  count   = local.wanted
  project = var.project
}

data "google_bigquery_default_service_account" "bigquery" {
  count   = local.wanted
  project = var.project
}

resource "google_kms_crypto_key_iam_member" "agents" {
  for_each      = local.agents
  crypto_key_id = var.key
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = "serviceAccount:${each.value}"
}

# Whoever takes the key from here waits for the grants.
output "key" {
  value      = var.key
  depends_on = [google_kms_crypto_key_iam_member.agents]
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    kms_crypto_key_iam_member_agents = google_kms_crypto_key_iam_member.agents
  }
}
