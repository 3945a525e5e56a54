# What a stream reads and where its dead letters go. streams/NAME.yaml has the same names.

variable "project" {
  type = string
}

variable "number" {
  type = string
}

variable "region" {
  type = string
}

variable "streams" {
  type = map(object({
    ordering = bool
    files    = optional(string)
  }))
}

variable "kms_key" {
  type = string
}

locals {
  agent = "serviceAccount:service-${var.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
}

resource "google_pubsub_topic" "messages" {
  for_each     = var.streams
  project      = var.project
  name         = each.key
  kms_key_name = var.kms_key
  # For a seek: what was acknowledged can be answered again, for example by a new model.
  message_retention_duration = "604800s"

  message_storage_policy {
    allowed_persistence_regions = [var.region]
  }
}

resource "google_pubsub_topic" "dead_letters" {
  for_each     = var.streams
  project      = var.project
  name         = "${each.key}-dead"
  kms_key_name = var.kms_key

  message_storage_policy {
    allowed_persistence_regions = [var.region]
  }
}

resource "google_pubsub_subscription" "messages" {
  for_each                = var.streams
  project                 = var.project
  name                    = each.key
  topic                   = google_pubsub_topic.messages[each.key].id
  enable_message_ordering = each.value.ordering
  # As long as Pub/Sub allows by default: an engine may be absent over a weekend.
  message_retention_duration = "604800s"
  ack_deadline_seconds       = 60

  # Never deleted for want of a subscriber.
  expiration_policy {
    ttl = ""
  }

  # For messages that a stream cannot judge; it announces those that it can by itself, on the same topic.
  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead_letters[each.key].id
    max_delivery_attempts = 50
  }

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }
}

# A topic without a subscription keeps nothing.
resource "google_pubsub_subscription" "dead_letters" {
  for_each                   = var.streams
  project                    = var.project
  name                       = "${each.key}-dead"
  topic                      = google_pubsub_topic.dead_letters[each.key].id
  message_retention_duration = "2678400s"

  expiration_policy {
    ttl = ""
  }
}

# Pub/Sub itself moves the messages of a dead-letter policy, and takes them off the subscription.
resource "google_pubsub_topic_iam_member" "agent" {
  for_each = var.streams
  project  = var.project
  topic    = google_pubsub_topic.dead_letters[each.key].name
  role     = "roles/pubsub.publisher"
  member   = local.agent
}

resource "google_pubsub_subscription_iam_member" "agent" {
  for_each     = var.streams
  project      = var.project
  subscription = google_pubsub_subscription.messages[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = local.agent
}

output "subscriptions" {
  value = { for name, each in google_pubsub_subscription.messages : name => each.name }
}

output "dead_letter_topics" {
  value = { for name, each in google_pubsub_topic.dead_letters : name => each.name }
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    pubsub_topic_messages                = google_pubsub_topic.messages
    pubsub_topic_dead_letters            = google_pubsub_topic.dead_letters
    pubsub_subscription_messages         = google_pubsub_subscription.messages
    pubsub_subscription_dead_letters     = google_pubsub_subscription.dead_letters
    pubsub_topic_iam_member_agent        = google_pubsub_topic_iam_member.agent
    pubsub_subscription_iam_member_agent = google_pubsub_subscription_iam_member.agent
  }
}
